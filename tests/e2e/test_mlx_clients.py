"""Real clients' requests through a real chat template, real grammars over their tools, and real decoding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from gateway_protocol.receipts import Verdict, verify
from provider.engine.spec import ModelSpec
from provider.jobs.plan import AnswerRules
from tests.e2e.agents import AGENTS, MODEL, Agent, qwen_code_at_full_size
from tests.e2e.strict_reader import Read, events, read
from tests.e2e.tiny_model import TINY
from tests.fakes.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The fixture model under the name that the recorded requests ask for, and with that model's context.
CODER = ModelSpec(MODEL, TINY.family, context_length=40_960, path=TINY.path, think=TINY.think)
CALLING = [agent for agent in AGENTS if agent.calls]


# `strict` refuses what a grammar can't hold, so it shows more; the other one is the same way once more.
@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["strict", pytest.param("malibu", marks=pytest.mark.slow)],
)
async def it(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    rules = AnswerRules(contract=request.param)
    folder = tmp_path_factory.mktemp("tiny")
    async with Stack(folder, backend="mlx", models=(CODER,), slots=8, rules=rules) as stack:
        yield stack


async def streamed(it: Stack, body: dict[str, Any]) -> Read:
    fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    async with it.http.post(f"{it.gateway.url}/v1/chat/completions", json=body | fields) as response:
        text = (await response.read()).decode()
        assert response.status == 200, text
    return read(events(text), include_usage=True)


def limited(body: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The fixture model knows no end to what it doesn't know."""
    body.pop("max_completion_tokens", None)
    return body | {"max_tokens": tokens}


async def test_each_request_is_rendered_and_held(it: Stack) -> None:
    """Every tool set has its grammar, none is refused, whatever its schemas say."""
    answers = await asyncio.gather(*(streamed(it, limited(agent.body, 12)) for agent in CALLING))
    for agent, answer in zip(CALLING, answers, strict=True):
        assert answer.finish_reason in ("stop", "length", "tool_calls"), agent.name
        assert answer.usage is not None
        assert answer.usage["prompt_tokens"] > 50


@pytest.mark.parametrize("agent", CALLING, ids=lambda agent: agent.name)
async def test_a_forced_call_fits_the_client_s_schema(it: Stack, agent: Agent) -> None:
    """Of each of three tools, named one after another, and whichever the model likes."""
    declared = [tool["function"]["name"] for tool in agent.body["tools"]][:3]
    choices = [{"type": "function", "function": {"name": name}} for name in declared]
    body = limited(agent.first_turn, 120) | {"parallel_tool_calls": False}
    answers = await asyncio.gather(
        *(streamed(it, body | {"tool_choice": choice}) for choice in [*choices, "required"])
    )
    for answer, names in zip(answers, [*([name] for name in declared), None], strict=True):
        assert answer.finish_reason in ("tool_calls", "length")
        if answer.finish_reason == "tool_calls":
            [(name, arguments)] = answer.named
            assert names is None or [name] == names
            assert jsonschema_rs.is_valid(agent.declared(name), arguments)


async def test_a_receipt_counts_what_was_cached(it: Stack) -> None:
    """The receipt says how much of the prompt was there from before."""
    agent = next(agent for agent in AGENTS if agent.name == "opencode")
    body = limited(agent.body, 4) | {"stream": False, "stream_options": None}
    await it.post(body)
    _, answer = await it.post(body)
    async with it.http.get(f"{it.gateway.url}/v1/providers/keys") as response:
        keys = await response.json()
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 2
    checked = verify(answer["malibu"]["receipt"], json.dumps(body), json.dumps(answer), keys)
    assert checked.verdict is Verdict.VALID
    assert checked.receipt is not None
    assert checked.receipt.usage.cached_tokens == usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_qwen_code_at_full_size(tmp_path: Path) -> None:
    """78 kB, 14 tools, max_tokens beyond the context: one forced call, and the turn after that."""
    body = qwen_code_at_full_size() | {"max_tokens": 32_768, "parallel_tool_calls": False}
    body["tool_choice"] = {"type": "function", "function": {"name": "list_agents"}}
    async with Stack(tmp_path, backend="mlx", models=(CODER,), slots=1) as it:
        first = await streamed(it, body)
        assert (first.named, first.finish_reason) == ([("list_agents", {})], "tool_calls")
        [call] = first.calls
        function = {"name": call.name, "arguments": "{}"}
        turn = [
            {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "none"}]},
        ]
        second = await streamed(it, body | {"messages": [*body["messages"], *turn]})
    assert second.finish_reason == "tool_calls"
    assert first.usage is not None
    assert second.usage is not None
    # Nearly all of the long prompt was there already.
    cached = second.usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.95 * first.usage["prompt_tokens"]
