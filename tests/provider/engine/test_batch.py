"""The batch with grammars in it: mlx-lm's own where none is; what a mask does to logits and neighbours."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch

from gateway_protocol.families import Family
from provider.engine.base import Constraint, ThinkMarkers
from provider.engine.batch import MaskedBatchGenerator, MaskedGenerationBatch
from provider.engine.drawing import sampler_for
from provider.engine.grammars import Grammars, Held, open_tokenizer
from provider.engine.sampling import Sampling, processors_for
from provider.toolcalls import CallPolicy
from provider.toolcalls.events import Failed
from tests.provider.engine.holding import chosen
from tests.provider.engine.test_grammar_walks import Output, calls_of, read_with
from tests.provider.engine.vocabularies import TINY

DIALOGUES = {one["id"]: one for one in json.loads((TINY / "dialogues.json").read_text(encoding="utf-8"))}
WEATHER = DIALOGUES["weather-paris"]["tools"]


class Tiny:
    """The fixture model with its grammars."""

    def __init__(self) -> None:
        self.model, self.tokenizer = mlx_lm.load(str(TINY))[:2]
        inner: Any = self.tokenizer
        self.ends = sorted(inner.eos_token_ids)
        self.grammars = Grammars(
            open_tokenizer(inner.backend_tokenizer.to_str(), width=933, end_tokens=self.ends),
            inner.get_vocab(),
            family=Family.QWEN,
            chat_template=inner.chat_template,
            think=ThinkMarkers("<think>", "</think>"),
        )

    def prompt(self, dialogue: str, tools: Any = None) -> list[int]:
        asked = DIALOGUES[dialogue]
        return list(
            self.tokenizer.apply_chat_template(
                asked["messages"],
                tools=tools or asked["tools"],
                add_generation_prompt=True,
                **asked["template_kwargs"],
            )
        )

    def held(self, choice: str, tools: Any = None, *, parallel: bool = False, answer: Any = None) -> Held:
        asked = Constraint(Family.QWEN, WEATHER if tools is None else tools, chosen(choice), parallel, answer)
        prepared = self.grammars.prepare(asked, reasoning_open=False)
        assert isinstance(prepared, Held)
        return prepared


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


class Rows:
    """Rows of one batch; `run` gives each row's text and finish reason."""

    def __init__(
        self, tiny: Tiny, model: Any = None, kind: type[BatchGenerator] = MaskedBatchGenerator
    ) -> None:
        self._tiny = tiny
        self.batch: Any = kind(
            model or tiny.model, stop_tokens=[[token] for token in tiny.ends], completion_batch_size=16
        )
        self.logprobs: dict[int, list[np.ndarray[Any, Any]]] = {}

    def add(
        self,
        dialogue: str,
        held: Held | None = None,
        *,
        sampler: Any = None,
        processors: Sequence[Any] = (),
        max_tokens: int = 200,
    ) -> int:
        own = [*processors, *([held.row()] if held is not None else [])]
        (uid,) = self.batch.insert(
            [self._tiny.prompt(dialogue)],
            max_tokens=[max_tokens],
            samplers=[sampler],
            logits_processors=[own],
        )
        self.logprobs[uid] = []
        return int(uid)

    def run(self) -> dict[int, tuple[str, str]]:
        tokens: dict[int, list[int]] = {uid: [] for uid in self.logprobs}
        reasons: dict[int, str] = {}
        while len(reasons) < len(tokens):
            for response in self.batch.next_generated():
                self.logprobs[response.uid].append(np.array(response.logprobs))
                if response.finish_reason != "stop":
                    tokens[response.uid].append(response.token)
                if response.finish_reason is not None:
                    reasons[response.uid] = response.finish_reason
        self.batch.close()
        return {uid: (self._tiny.tokenizer.decode(tokens[uid]), reasons[uid]) for uid in tokens}


def test_what_is_replaced_of_mlx_lm_is_what_was_read() -> None:
    """The step, the way from prompt to generation and the constructor were written against this source; if
    mlx-lm changes it, compare them before the pin moves."""
    for replaced, digest in (
        (GenerationBatch._step, "d7513c5031029194"),
        (PromptProcessingBatch.generate, "1af9ca01578812d3"),
        (PromptProcessingBatch.split, "6e75ac09995a521d"),
        (BatchGenerator.__init__, "80fdd7d3fc89c375"),
    ):
        source = inspect.getsource(replaced).encode()
        assert hashlib.sha256(source).hexdigest()[:16] == digest, replaced.__qualname__


def test_without_grammars_the_batch_is_mlx_lms(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ["capital", "spiders", "weather-paris", "two-cities", "emoji"]
    plain = Rows(tiny, kind=BatchGenerator)
    masked = Rows(tiny)
    for one in ids:
        plain.add(one)
        masked.add(one)
    monkeypatch.setattr(MaskedGenerationBatch, "_masks", None)  # would fail if it were called
    assert masked.run() == plain.run()


def moving_takes(tiny: Tiny, kind: type[BatchGenerator]) -> float:
    """Memory that the way from prompt to generation takes, as a share of what the prompt's cache does."""
    batch: Any = kind(tiny.model, stop_tokens=[[tiny.ends[0]]], completion_batch_size=16)
    # A multiple of 256 less some: the cache has room, so the step itself doesn't move it.
    batch.insert([[10 + place % 800 for place in range(3_000)]], max_tokens=[4])
    mx.synchronize()
    progress, _ = batch.next()
    while progress[0].progress[0] < 2_999:
        progress, _ = batch.next()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    batch.next()
    mx.synchronize()
    taken = mx.get_peak_memory() - before
    cached = batch.prompt_cache_nbytes
    batch.close()
    return taken / cached


def test_a_prompts_cache_moves_on_without_a_copy(tiny: Tiny) -> None:
    # Copies are made layer by layer, of which this model has three.
    assert moving_takes(tiny, BatchGenerator) > 0.25
    assert moving_takes(tiny, MaskedBatchGenerator) < 0.15


def test_a_grammar_that_the_model_obeys_anyway_changes_nothing(tiny: Tiny) -> None:
    rows = Rows(tiny)
    asked = [
        "weather-paris",
        "weather-prose",
        "two-cities",
        "write-notes",
        "spiders",
        "weather-think",
        "tides",
    ]
    uids = {
        rows.add(one, tiny.held("auto", DIALOGUES[one]["tools"] or WEATHER, parallel=True), max_tokens=400)
        if DIALOGUES[one]["tools"]
        else rows.add(one, max_tokens=400): one
        for one in asked
    }
    for uid, (text, reason) in rows.run().items():
        assert (text, reason) == (DIALOGUES[uids[uid]]["raw"], "stop")


def test_neighbours_of_a_held_row_are_what_they_are_alone(tiny: Tiny) -> None:
    """Greedy and seeded rows, penalties, joining at different times; one of them under a grammar."""
    seeded = Sampling(1.5, 0.9, 0, 0.0, 1.1, 0.2, 0.3, {5: 1.0}, seed=7)

    def add(rows: Rows, one: str) -> int:
        if one != "seeded":
            return rows.add(one)
        return rows.add(
            "bees", sampler=sampler_for(seeded), processors=processors_for(seeded, len(tiny.prompt("bees")))
        )

    names = ["capital", "seeded", "lighthouse", "rain"]
    alone = []
    for name in names:
        rows = Rows(tiny)
        uid = add(rows, name)
        alone.append(rows.run()[uid])
    rows = Rows(tiny)
    forced = rows.add("moon", tiny.held("required"))
    uids = [add(rows, name) for name in names]
    together = rows.run()
    assert [together[uid] for uid in uids] == alone
    assert together[forced][0].lstrip().startswith("<tool_call>\n{")


def test_required_forces_a_call_out_of_any_question(tiny: Tiny) -> None:
    rows = Rows(tiny)
    for one in ("capital", "moon", "poem"):
        rows.add(one, tiny.held("required"), max_tokens=300)
    for output, reason in rows.run().values():
        text = output.lstrip()
        if reason == "stop":
            head, tail = '<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>"
            assert text.startswith(head)
            assert text.endswith(tail)
            assert isinstance(json.loads(text[len(head) : -len(tail)])["city"], str)
        else:
            assert reason == "length"


class Scripted:
    """The tiny model with logits that want one given text: a model that is set on doing it wrong."""

    def __init__(self, tiny: Tiny, text: str) -> None:
        self._model = tiny.model
        self._wanted = [*tiny.tokenizer.encode(text, add_special_tokens=False), tiny.ends[-1]]
        self._drawn = 0
        self.layers = tiny.model.layers

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        logits = self._model(inputs, cache=cache)
        if inputs.shape[1] > 1:
            return logits
        wanted = self._wanted[min(self._drawn, len(self._wanted) - 1)]
        self._drawn += 1
        return logits.at[:, :, wanted].add(100.0)


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


WRONG = {
    "a wrong name": called("get_wether", '{"city": "Paris"}'),
    "a missing field": called("get_weather", "{}"),
    "a wrong value": called("get_weather", '{"city": "Paris", "unit": "kelvin"}'),
    "text behind the closer": called("get_weather", '{"city": "Paris"}') + " Done.",
    "no JSON": "<tool_call>\nParis\n</tool_call>",
    "an early end": "<tool_call>\n",
    "a bare function": "So: <function=get_wether>\n<parameter=city>\nParis\n</parameter>\n</function>",
}


@pytest.mark.parametrize("wish", WRONG)
def test_logits_that_want_it_wrong_still_give_valid_calls(tiny: Tiny, wish: str) -> None:
    scripted: Any = Scripted(tiny, WRONG[wish])
    rows = Rows(tiny, scripted)
    uid = rows.add("capital", tiny.held("auto", parallel=True), max_tokens=250)
    text, reason = rows.run()[uid]
    output = Output([text], [None], ended=reason == "stop", must_end_at=None)
    schema = WEATHER[0]["function"]["parameters"]
    policy = CallPolicy(
        family=Family.QWEN, tools={"get_weather": schema}, parallel=True, delivery="incremental"
    )
    events = read_with(output, policy)
    assert not any(isinstance(event, Failed) for event in events)
    calls = calls_of(events)
    assert calls or reason == "length"
    for name, arguments in calls:
        assert name == "get_weather"
        value = json.loads(arguments)
        assert isinstance(value["city"], str)
        assert value.get("unit", "celsius") in ("celsius", "fahrenheit")
        assert set(value) <= {"city", "unit"}


def test_none_leaves_the_opener_no_probability(tiny: Tiny) -> None:
    scripted: Any = Scripted(tiny, WRONG["a wrong name"])
    rows = Rows(tiny, scripted)
    uid = rows.add("weather-paris", tiny.held("none"), max_tokens=40)
    text, _ = rows.run()[uid]
    opener = tiny.tokenizer.convert_tokens_to_ids("<tool_call>")
    assert "<tool_call>" not in text
    for logprobs in rows.logprobs[uid]:
        assert logprobs[opener] == -np.inf
        assert np.exp(logprobs.astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-4)


def test_a_bias_lifts_no_mask_and_padding_is_never_drawn(tiny: Tiny) -> None:
    opener = tiny.tokenizer.convert_tokens_to_ids("<tool_call>")
    biased = Sampling(2.0, 1.0, 0, 0.0, 1.0, 0.0, 0.0, {opener: 100.0, 930: 100.0}, seed=1)
    rows = Rows(tiny)
    uid = rows.add(
        "capital",
        tiny.held("none"),
        sampler=sampler_for(biased, reported=True),
        processors=processors_for(biased, 9),
        max_tokens=30,
    )
    text, _ = rows.run()[uid]
    assert "<tool_call>" not in text
    assert all(logprobs[930] == -np.inf for logprobs in rows.logprobs[uid])


def test_an_answer_by_schema_comes_out(tiny: Tiny) -> None:
    name = {"type": "string", "maxLength": 20}
    answer = {"type": "object", "properties": {"name": name}, "required": ["name"]}
    rows = Rows(tiny)
    uid = rows.add("json", tiny.held("auto", [], answer=answer))
    text, reason = rows.run()[uid]
    assert reason == "stop"
    assert json.loads(text)["name"].startswith("Ada")
