"""Forced calls through HTTP, over thirty functions as agents declare them: whatever the model, they fit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from gateway_protocol.families import Family
from provider.engine.spec import Deadlines, ModelSpec
from provider.local_gateway.settings import Timers
from tests.e2e.tiny_model import TINY, tiny_stack
from tests.fakes.stack import Stack
from tests.provider.engine.tool_schemas import FUNCTIONS, TOOLS
from tests.provider.engine.vocabularies import demo_folder

ASK = "Use a tool for this: I am in Paris, it is cold, and I want two of the small blue ones tomorrow."
MANY = [
    {"type": "function", "function": {**tool["function"], "name": f"{tool['function']['name']}_{number}"}}
    for number, tool in enumerate((TOOLS * 2)[:40])
]


def body(model: str, name: str, choice: Any, tools: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{ASK} ({name})"}]
    asked = {"model": model, "messages": messages, "tools": tools, "tool_choice": choice, "temperature": 0}
    return asked | fields


def requests(model: str, max_tokens: int) -> list[dict[str, Any]]:
    """Sixty: each function by name among others, and `required` with it alone; one with forty at once."""
    asked = []
    for number, tool in enumerate(TOOLS):
        name = tool["function"]["name"]
        near = [TOOLS[(number + step) % len(TOOLS)] for step in range(3)]
        named = {"type": "function", "function": {"name": name}}
        asked.append(body(model, name, named, near, max_tokens=max_tokens))
        asked.append(body(model, name, "required", [tool], max_tokens=max_tokens))
    asked[-1] = body(model, "any", "required", MANY, max_tokens=max_tokens)
    return asked


async def answer(stack: Stack, asked: dict[str, Any], *, stream: bool) -> tuple[str, list[tuple[str, str]]]:
    """The finish reason and the complete calls: names and arguments' text."""
    if stream:
        streamed = await stack.stream(asked)
        assert not streamed.errors, streamed.errors
        assert len(streamed.finish_reasons) == 1
        reason = streamed.finish_reasons[0]
        calls = [(call["name"], call["arguments"]) for call in streamed.calls]
        return reason, calls if reason == "tool_calls" else []
    status, document = await stack.post(asked)
    assert status == 200, document
    choice = document["choices"][0]
    made = choice["message"].get("tool_calls") or []
    return choice["finish_reason"], [(c["function"]["name"], c["function"]["arguments"]) for c in made]


def check(asked: dict[str, Any], reason: str, calls: list[tuple[str, str]]) -> None:
    declared = {tool["function"]["name"]: tool["function"].get("parameters") for tool in asked["tools"]}
    assert reason in ("tool_calls", "length")
    if reason == "length":
        assert not calls
        return
    assert len(calls) == 1
    name, arguments = calls[0]
    assert name in declared
    if isinstance(asked["tool_choice"], dict):
        assert name == asked["tool_choice"]["function"]["name"]
    schema = declared[name]
    value = json.loads(arguments)
    if schema is None:
        assert value == {}
    else:
        jsonschema_rs.validator_for(schema, offline=True).validate(value)


async def check_all(stack: Stack, model: str, max_tokens: int) -> list[str]:
    """Each request buffered and streamed; the finish reasons."""
    reasons = []

    async def one(asked: dict[str, Any]) -> None:
        async with at_once:
            buffered = await answer(stack, asked, stream=False)
            streamed = await answer(stack, asked, stream=True)
        if buffered != streamed:
            # In company the two may be added up in another order; alone nothing may differ.
            again.append(asked)
        for reason, calls in (buffered, streamed):
            check(asked, reason, calls)
            reasons.append(reason)

    at_once = asyncio.Semaphore(8)
    again: list[dict[str, Any]] = []
    await asyncio.gather(*(one(asked) for asked in requests(model, max_tokens)))
    for asked in again:
        buffered = await answer(stack, asked, stream=False)
        assert buffered == await answer(stack, asked, stream=True)
    print(f"{len(again)} of {len(reasons) // 2} pairs differed in company")
    return reasons


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiny(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with tiny_stack(tmp_path_factory.mktemp("tiny")) as stack:
        yield stack


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(300)
async def test_sixty_forced_calls_of_the_tiny_model(tiny: Stack) -> None:
    """It was never taught these functions, so all that is right about its calls is the grammar's doing."""
    reasons = await check_all(tiny, TINY.id, 160)
    assert len(reasons) == 120
    assert len(FUNCTIONS) == 30
    assert reasons.count("tool_calls") > 90


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(1800)
async def test_sixty_forced_calls_of_the_demo_model(tmp_path: Any) -> None:
    spec = ModelSpec("demo", Family.QWEN, context_length=8192, path=demo_folder())
    # On a slow machine a prompt among eight takes its time.
    deadlines = Deadlines(step=600.0, first_token=1200.0)
    patience: dict[str, Any] = {"queue_seconds": 900.0, "deadlines": deadlines}
    gateway = {"timers": Timers(ack=0.02, first_content=1200.0)}
    async with Stack(tmp_path, backend="mlx", models=(spec,), slots=8, gateway=gateway, **patience) as stack:
        reasons = await check_all(stack, spec.id, 128)
    print(f"finished calls: {reasons.count('tool_calls')} of {len(reasons)}")
    assert len(reasons) == 120
    assert reasons.count("tool_calls") > 90
