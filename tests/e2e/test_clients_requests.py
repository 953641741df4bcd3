"""What real clients send, served as it is: their bodies, headers and order, in the form in which they ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletion
from yarl import URL

from gateway_protocol.families import Family
from provider.engine.spec import ModelSpec
from provider.jobs.plan import AnswerRules
from tests.e2e.agents import AGENTS, BY_NAME, MODEL, Agent, hermes, qwen_code_at_full_size, xml
from tests.e2e.strict_reader import CALL_ID, Call, Read, events, read
from tests.fakes.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 40_960  # Qwen3-8B's
CODER = ModelSpec(MODEL, Family.QWEN, context_length=CONTEXT)
BLOCK = (
    "app.py\n```python\n<<<<<<< SEARCH\n    return 4\n=======\n    return 3 < 4 & 5\n>>>>>>> REPLACE\n```\n"
)
ON_AND_ON = "The end is not near. "
CALLING = [agent for agent in AGENTS if agent.calls]


def lines(markup: Any) -> list[dict[str, Any]]:
    script: list[dict[str, Any]] = [
        {"match": "Which file did", "text": ON_AND_ON * 30_000, "chars_per_token": 20},
    ]
    for agent in CALLING:
        text = "\n".join(markup(*call) for call in agent.calls)
        script.append({"match": agent.asks, "text": text, "chars_per_token": 3})
    return [*script, {"text": "Done, it works."}]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[xml, hermes], ids=["xml", "hermes"])
async def it(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    # Agents tell their models to write several calls at once, and never say `parallel_tool_calls`.
    rules = AnswerRules(parallel_when_omitted="all")
    folder = tmp_path_factory.mktemp("clients")
    async with Stack(folder, *lines(request.param), models=(CODER,), rules=rules) as stack:
        yield stack


async def send(it: Stack, agent: Agent, body: dict[str, Any]) -> tuple[dict[str, str], str]:
    """Headers and text of the answer, which must be one."""
    headers = {"Authorization": "Bearer any", "Content-Type": "application/json", **agent.headers}
    async with it.http.post(
        f"{it.gateway.url}/v1/chat/completions", data=json.dumps(body), headers=headers
    ) as response:
        text = await response.text()
        assert response.status == 200, text
        # Whatever it could have decoded, nothing was encoded: a stream would wait for a full block.
        assert "Content-Encoding" not in response.headers
        assert "x-request-id" in response.headers
        return {name.lower(): value for name, value in response.headers.items()}, text


async def answered(it: Stack, agent: Agent, body: dict[str, Any]) -> Read:
    """The answer in the form asked for; a buffered one as if it had been streamed."""
    headers, text = await send(it, agent, body)
    if body.get("stream"):
        assert headers["content-type"].startswith("text/event-stream")
        asked = bool((body.get("stream_options") or {}).get("include_usage"))
        return read(events(text), include_usage=asked)
    assert headers["content-type"].startswith("application/json")
    return folded(ChatCompletion.model_validate(json.loads(text)))


def folded(answer: ChatCompletion) -> Read:
    [choice] = answer.choices
    result = Read(pieces=[choice.message.content or ""], finish_reason=choice.finish_reason)
    for call in choice.message.tool_calls or ():
        assert call.type == "function"
        assert CALL_ID.fullmatch(call.id)
        result.calls.append(Call(call.id, call.function.name, [call.function.arguments]))
    assert answer.usage is not None
    return result


@pytest.mark.parametrize("agent", CALLING, ids=lambda agent: agent.name)
async def test_the_first_turn_calls(it: Stack, agent: Agent) -> None:
    answer = await answered(it, agent, agent.first_turn)
    assert answer.named == agent.calls
    assert (answer.content, answer.finish_reason) == ("", "tool_calls")
    # Numbers keep their kind: 30 is no 30.0.
    assert [json.dumps(a) for _, a in answer.named] == [json.dumps(a) for _, a in agent.calls]


@pytest.mark.parametrize("agent", CALLING, ids=lambda agent: agent.name)
async def test_buffered_and_streamed_agree(it: Stack, agent: Agent) -> None:
    body = agent.first_turn
    body.pop("stream_options", None)
    streamed = await answered(it, agent, body | {"stream": True})
    buffered = await answered(it, agent, body | {"stream": False})
    assert [call.text for call in streamed.calls] == [call.text for call in buffered.calls]


@pytest.mark.parametrize("agent", CALLING, ids=lambda agent: agent.name)
async def test_a_later_turn_answers(it: Stack, agent: Agent) -> None:
    """The body as recorded, with history, foreign IDs, parts and whatever else it holds."""
    answer = await answered(it, agent, agent.body)
    assert (answer.content, answer.finish_reason) == ("Done, it works.", "stop")


@pytest.mark.parametrize("name", ["aider", "opencode_title"])
async def test_an_answer_in_text_alone(tmp_path: Path, name: str) -> None:
    """Without tools nothing is held back and every character arrives, whatever it looks like."""
    agent = BY_NAME[name]
    for text in (BLOCK, xml("f", {"a": "b"}), "a < b", "<"):
        async with Stack(tmp_path, {"text": text, "chars_per_token": 1}, models=(CODER,)) as it:
            answer = await answered(it, agent, agent.body)
            assert (answer.content, answer.calls, answer.finish_reason) == (text, [], "stop")


async def test_the_calls_of_one_turn_go_back(it: Stack) -> None:
    """Each client keeps the turn in a form of its own; our IDs come back as they were given."""
    agent = BY_NAME["opencode"]
    body = agent.first_turn
    answer = await answered(it, agent, body)
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for call in answer.calls
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    for content in (None, "", "Prose."):
        turn = {"role": "assistant", "content": content, "tool_calls": calls}
        again = await answered(it, agent, body | {"messages": [*body["messages"], turn, *results]})
        assert again.content == "Done, it works."


async def test_qwen_code_at_full_size(it: Stack) -> None:
    body = qwen_code_at_full_size()
    size = len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    assert 76_000 < size < 80_000
    assert (body["max_tokens"], len(body["tools"])) == (32_768, 14)
    answer = await answered(it, BY_NAME["qwen_code"], body)
    assert answer.named == BY_NAME["qwen_code"].calls

    # Prompt and max_tokens are more than the context together: lowered, not refused.
    body["messages"].append({"role": "assistant", "content": "I changed one."})
    body["messages"].append(
        {"role": "user", "content": [{"type": "text", "text": "Which file did you change?"}]}
    )
    answer = await answered(it, BY_NAME["qwen_code"], body)
    assert answer.usage is not None
    assert answer.usage["prompt_tokens"] > 19_000
    assert answer.usage["prompt_tokens"] + 32_768 > CONTEXT
    assert it.engine.asked[-1].max_tokens == 32_768
    assert answer.usage["completion_tokens"] == CONTEXT - answer.usage["prompt_tokens"]
    assert (answer.finish_reason, answer.content[:21]) == ("length", ON_AND_ON)


async def test_two_requests_at_once(it: Stack) -> None:
    """OpenCode asks for a title and, before it has it, for the answer."""
    title, real = BY_NAME["opencode_title"], BY_NAME["opencode"]
    answers = await asyncio.gather(answered(it, title, title.body), answered(it, real, real.first_turn))
    assert answers[0].finish_reason == "stop"
    assert answers[1].named == real.calls


async def test_one_slot_makes_the_second_wait(tmp_path: Path) -> None:
    """Not a 429: it is served when the first is done."""
    title, real = BY_NAME["opencode_title"], BY_NAME["opencode"]
    async with Stack(tmp_path, {"text": "Done.", "prefill_ms": 200}, models=(CODER,), slots=1) as it:
        answers = await asyncio.gather(answered(it, title, title.body), answered(it, real, real.body))
        assert [answer.content for answer in answers] == ["Done.", "Done."]


async def test_one_call_where_the_operator_keeps_the_contract(tmp_path: Path) -> None:
    agent = BY_NAME["opencode"]
    async with Stack(tmp_path, *lines(xml), models=(CODER,)) as it:
        assert (await answered(it, agent, agent.first_turn)).named == agent.calls[:1]


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_slash_in_a_model_s_id(it: Stack, prefix: str) -> None:
    for path in (MODEL, MODEL.replace("/", "%2F"), MODEL.replace("/", "%2f")):
        url = URL(f"{it.gateway.url}{prefix}/models/{path}", encoded=True)
        async with it.http.get(url, headers={"Authorization": "Bearer any"}) as response:
            model = await response.json()
        assert (response.status, model["id"], model["object"]) == (200, MODEL, "model")
        assert model["max_model_len"] == CONTEXT
    assert (await it.openai.models.retrieve(MODEL)).id == MODEL
    assert [model.id async for model in await it.openai.models.list()] == [MODEL]


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Mode": "cors", "Accept": "*/*", "Accept-Language": "*"},
        {"Accept": "application/json"},
        {"Accept": "text/html"},
        {"Accept-Encoding": "br;q=1.0, gzip;q=0.9, zstd"},
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "text/plain"},
        {"Authorization": "Bearer "},
        {"Authorization": ""},
        {"Connection": "close"},
        {"Expect": "100-continue"},
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [True, False])
async def test_no_header_is_minded(it: Stack, headers: dict[str, str], stream: bool) -> None:
    agent = Agent("openai_python", headers, "")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    assert (await answered(it, agent, body)).content == "Done, it works."


async def test_comment_lines_come_before_the_first_chunk(it: Stack) -> None:
    agent = BY_NAME["aider"]
    _, text = await send(it, agent, agent.body)
    assert text.startswith(": ")


@pytest.mark.parametrize("size", [2 << 20, 7 << 20])
async def test_large_prompts_pass_the_link(tmp_path: Path, size: int) -> None:
    """Over the libraries' own limits for one websocket message, 1 and 4 MiB."""
    vast = ModelSpec(MODEL, Family.QWEN, context_length=4 << 20)
    async with Stack(tmp_path, {"text": "Read."}, models=(vast,)) as it:
        message = {"role": "user", "content": "x" * size}
        body = {"model": MODEL, "messages": [message]}
        status, answer = await it.post(body)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "Read.")
        assert answer["usage"]["prompt_tokens"] == size // 4
        message["content"] = "x" * (8 << 20)
        status, answer = await it.post(body)
        assert (status, answer["error"]["code"]) == (413, "request_body_too_large")
