"""Grammars through the whole engine: a real child, the tiny model, jobs that are held to something."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from llguidance import LLMatcher, LLParserLimits

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from provider.engine.base import (
    Constraint,
    Failed,
    Finished,
    GenerationRequest,
    SamplingParams,
    StopCause,
    ThinkMarkers,
)
from provider.engine.grammars import Held
from provider.engine.loading import Loading
from provider.engine.process import EngineProcess
from provider.engine.prompt import TextModel
from provider.engine.prompt_cache import PromptCache
from provider.engine.resident import ResidentModel
from provider.engine.row import Job, PreparedJob
from provider.engine.sampling import resolve
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.driving import (
    DIALOGUES,
    FIXTURE,
    GREEDY,
    known,
    run,
    to_end,
    until_tokens,
)
from tests.provider.engine.holding import chosen, tool
from tests.provider.engine.test_grammars import HOSTILE, UNKNOWN

BY_ID = {dialogue["id"]: dialogue for dialogue in DIALOGUES}
SPEC = ModelSpec(
    "tiny-qwen3", Family.QWEN, context_length=16384, path=FIXTURE, think=ThinkMarkers("<think>", "</think>")
)
WEATHER = BY_ID["weather-paris"]["tools"]
CITY = WEATHER[0]["function"]["parameters"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(EngineSettings(backend="mlx", slots=8, models=(SPEC,)))
    await engine.start()
    await engine.wait_ready()
    yield engine
    await engine.aclose()


def held_request(
    dialogue: str,
    choice: str = "auto",
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    parallel: bool = True,
    answer: Mapping[str, Any] | None = None,
    strict: bool = False,
    **fields: Any,
) -> GenerationRequest:
    request = known(BY_ID[dialogue], **fields)
    tools = list(BY_ID[dialogue]["tools"] or []) if tools is None else list(tools)
    constraint = Constraint(
        Family.QWEN, tools, chosen(choice), parallel, response_schema=answer, refuse_uncompilable=strict
    )
    return replace(request, tools=tools or None, constraint=constraint)


def arguments_of(text: str, name: str) -> Any:
    head, tail = f'<tool_call>\n{{"name": "{name}", "arguments": ', "}\n</tool_call>"
    call = text.rpartition("</think>")[2].strip()
    assert call.startswith(head)
    assert call.endswith(tail)
    return json.loads(call[len(head) : -len(tail)])


@pytest.mark.asyncio(loop_scope="module")
class TestJobs:
    async def test_a_model_that_obeys_is_not_disturbed(self, engine: EngineProcess) -> None:
        ids = [
            "weather-paris",
            "weather-think",
            "two-cities",
            "write-notes",
            "result-paris",
            "weather-think-opened",
        ]
        outcomes = await asyncio.gather(*(run(engine, held_request(one)) for one in ids))
        for one, outcome in zip(ids, outcomes, strict=True):
            assert outcome.text == BY_ID[one]["raw"]
            assert outcome.admitted is not None
            assert outcome.admitted.call_enforced

    async def test_a_forced_call_comes_after_reasoning_and_fits(self, engine: EngineProcess) -> None:
        for one in ("capital", "spiders", "spiders-opened", "poem"):
            outcome = await run(engine, held_request(one, "required", tools=WEATHER, parallel=False))
            assert outcome.finished.cause is StopCause.STOP
            jsonschema_rs.validator_for(CITY).validate(arguments_of(outcome.text, "get_weather"))
        assert (
            "Three times eight"
            in (await run(engine, held_request("spiders", "required", tools=WEATHER))).text
        )

    async def test_hot_sampling_can_say_nothing_else(self, engine: EngineProcess) -> None:
        hot = SamplingParams(temperature=5.0, seed=3)
        number = tool("pick", {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]})
        for seed in range(6):
            sampling = replace(hot, seed=seed)
            request = held_request(
                "moon", "pick", tools=[number, *WEATHER], parallel=False, sampling=sampling
            )
            text = (await run(engine, request)).text
            if "<think>" not in text:
                assert arguments_of(text, "pick")["n"] in (1, 2, 3)

    async def test_eight_jobs_each_under_its_own_grammar(self, engine: EngineProcess) -> None:
        tools = [
            tool(f"tool_{i}", {"type": "object", "properties": {"v": {"const": i}}, "required": ["v"]})
            for i in range(8)
        ]
        jobs = [run(engine, held_request("rain", f"tool_{i}", tools=tools, parallel=False)) for i in range(8)]
        for i, outcome in enumerate(await asyncio.gather(*jobs)):
            assert arguments_of(outcome.text, f"tool_{i}") == {"v": i}

    async def test_held_back_in_mid_call_it_goes_on_where_it_was(self, engine: EngineProcess) -> None:
        request = held_request("write-long", "required")
        expected = (await run(engine, request)).text
        assert expected == BY_ID["write-long"]["raw"]
        generation = engine.submit(replace(request, generation_id="paused"))
        outcome = await until_tokens(generation, 5)
        for _ in range(3):
            generation.pause(True)
            await asyncio.sleep(0)
            generation.pause(False)
            wanted = len(outcome.tokens) + 4
            while len(outcome.tokens) < wanted and outcome.end is None:
                outcome.take(await generation.events())
        assert (await to_end(generation, outcome)).text == expected

    async def test_logprobs_of_what_is_ruled_out_are_numbers(self, engine: EngineProcess) -> None:
        sampling = SamplingParams(temperature=0.0, top_logprobs=20)
        outcome = await run(engine, held_request("capital", "required", tools=WEATHER, sampling=sampling))
        values = [top.logprob for token in outcome.tokens for top in token.top_logprobs]
        assert min(values) == -9999.0
        json.dumps(values, allow_nan=False)

    async def test_cut_by_max_tokens_it_is_length(self, engine: EngineProcess) -> None:
        outcome = await run(engine, held_request("write-long", "required", max_tokens=20))
        assert outcome.finished == Finished(StopCause.LENGTH, 20)

    async def test_an_answer_by_schema(self, engine: EngineProcess) -> None:
        schema = {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 9}},
            "required": ["name"],
        }
        outcome = await run(engine, held_request("json", answer=schema))
        jsonschema_rs.validator_for(schema).validate(json.loads(outcome.text))
        assert outcome.admitted is not None
        assert not outcome.admitted.call_enforced

    async def test_what_cant_be_held_is_refused_before_any_work(self, engine: EngineProcess) -> None:
        odd = tool("odd", {"type": "object", "properties": {"v": UNKNOWN["uniqueItems"]}})
        steps = engine.status().steps
        refused = (await run(engine, held_request("moon", tools=[odd], strict=True))).rejected
        assert refused.code is ErrorCode.UNSUPPORTED_FIELD
        assert refused.param == "tools[0].function.parameters"
        refused = (await run(engine, held_request("moon", answer={"$ref": "https://example.com/x"}))).rejected
        assert refused.param == "response_format"
        assert engine.status().steps == steps

    async def test_hostile_schemas_disturb_no_one(self, engine: EngineProcess) -> None:
        # (No request body is nested as deep as the first: gateway and provider refuse it before.)
        hostile = [
            run(engine, held_request("moon", tools=[tool("h", {"type": "object", **schema})], max_tokens=30))
            for kind, schema in HOSTILE.items()
            if kind != "nested without end"
        ]
        others = [run(engine, known(BY_ID[one])) for one in ("tides", "capital", "bees")]
        *_, tides, capital, bees = await asyncio.gather(*hostile, *others)
        assert [one.text for one in (tides, capital, bees)] == [
            BY_ID[one]["raw"] for one in ("tides", "capital", "bees")
        ]
        assert engine.status().restarts == 0


@pytest.mark.asyncio
async def test_without_forcing_nothing_is_promised() -> None:
    engine = EngineProcess(EngineSettings(backend="mlx", slots=2, models=(SPEC,), forcing=False))
    await engine.start()
    try:
        assert not engine.models()["tiny-qwen3"].can_force
        assert not engine.models()["tiny-qwen3"].can_constrain
        outcome = await run(engine, held_request("capital", "required", tools=WEATHER))
        assert outcome.text == BY_ID["capital"]["raw"] or outcome.end is not None
        assert outcome.admitted is not None
        assert not outcome.admitted.call_enforced
        refused = (await run(engine, held_request("json", answer={}))).rejected
        assert (refused.code, refused.param) == (ErrorCode.UNSUPPORTED_FIELD, "response_format")
        refused = (await run(engine, held_request("json", "required", tools=WEATHER, strict=True))).rejected
        assert (refused.code, refused.param) == (ErrorCode.UNSUPPORTED_FIELD, "tool_choice")
    finally:
        await engine.aclose()


def failing(text: TextModel) -> Held:
    """A grammar that runs into a limit after some tokens of a call."""
    assert text.grammars is not None
    prepared = text.grammars.prepare(
        Constraint(Family.QWEN, WEATHER, chosen("required"), False), reasoning_open=False
    )
    assert isinstance(prepared, Held)
    tokenizer = text.grammars.tokenizer
    lark = 'start: <tool_call> "\\n" v\nv: /(?s:.*a.{18}b|.*b.{17}a)/\n'
    limits = LLParserLimits(max_lexer_states=400, verbose_errors=False)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=limits)
    assert not matcher.is_error()
    return replace(prepared, prototype=matcher)


def test_a_grammar_that_fails_ends_its_job_with_an_error_and_no_other() -> None:
    """Its mask would be the end token alone: the job would look well ended in the middle of a call."""
    text = TextModel(SPEC, forcing=True)
    loading = Loading(SPEC)
    list(loading.pieces())
    resident = ResidentModel(text, loading.model, loading.cost, PromptCache(), slots=4, prefill_step=512)

    def prepared(serial: int, dialogue: str, grammar: Held | None) -> PreparedJob:
        request = known(BY_ID[dialogue])
        prompt = text.render(request).tokens
        job = Job(serial, request, 0.0)
        return PreparedJob(
            job, text, prompt, 100, False, resolve(GREEDY, text.sampling_defaults), grammar=grammar
        )

    resident.add(prepared(1, "weather-paris", failing(text)))
    resident.add(prepared(2, "bees", None))
    resident.add(prepared(3, "weather-tokyo", None))
    ends: dict[int, Any] = {}
    texts: dict[int, str] = {1: "", 2: "", 3: ""}
    while resident.busy:
        for row, end in resident.step():
            texts[row.job.serial] = "".join(row.texts)
            if end is not None:
                ends[row.job.serial] = end
    resident.close()
    assert isinstance(ends[1], Failed)
    assert ends[1].cause == "grammar_failed"
    assert texts[1].startswith("<tool_call>")
    for serial, dialogue in ((2, "bees"), (3, "weather-tokyo")):
        assert ends[serial].cause is StopCause.STOP
        assert texts[serial] == BY_ID[dialogue]["raw"]
