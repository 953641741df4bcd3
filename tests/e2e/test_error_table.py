"""The error table of docs/contract.md through HTTP: from the gateway, and from the provider when the gateway
lets everything pass. Sizes at the cap and one byte over."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from gateway_protocol import limits
from gateway_protocol.openai_types import CheckedRequest
from gateway_protocol.validation import check_request
from provider.local_gateway import chat
from tests.fakes.stack import GPT_OSS, PLAIN, QWEN, Stack

Refusal = tuple[int, str, str | None, bool]
USER = {"role": "user", "content": "hi"}
MIB, KIB = limits.MIB, limits.KIB


def call_id(number: int) -> str:
    return f"call_{number:032x}"


def asked(*arguments: str, first: int = 0) -> dict[str, Any]:
    calls = [
        {"id": call_id(first + number), "type": "function", "function": {"name": "f", "arguments": text}}
        for number, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(number: int, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id(number), "content": content}


def padded(size: int) -> str:
    """JSON text of `size` bytes, two of them in one character."""
    return '{"é": "' + "x" * (size - 10) + '"}'


def body(*messages: dict[str, Any], model: str = QWEN.id, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [USER, *messages], **fields}


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def buyer(code: str, param: str | None, status: int = 400) -> Refusal:
    return (status, code, param, False)


def results(*sizes: int) -> list[dict[str, Any]]:
    return [asked(*["{}"] * len(sizes)), *(result(n, "x" * size) for n, size in enumerate(sizes))]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
REFUSED: list[tuple[str, dict[str, Any], Refusal]] = [
    ("a field of the wrong type", body(temperature="hot"), buyer("invalid_request", "temperature")),
    ("n", body(n=2), buyer("unsupported_field", "n")),
    ("legacy functions", body(functions=[{"name": "f"}]), buyer("unsupported_field", "functions")),
    ("parallel", body(parallel_tool_calls="yes"), buyer("invalid_request", "parallel_tool_calls")),
    ("no content", body({"role": "user"}), buyer("invalid_request", "messages[1].content")),
    (
        "an image",
        body({"role": "user", "content": [IMAGE]}),
        buyer("unsupported_field", "messages[1].content[0].type"),
    ),
    ("a result of null", body(asked("{}"), result(0, None)), buyer("invalid_request", "messages[2].content")),
    ("257 messages", body(*[USER] * 256), buyer("messages_too_long", None)),
    ("129 calls", body(asked(*["{}"] * 129)), buyer("too_many_tool_calls", None)),
    (
        "an empty ID",
        body(asked("{}"), {"role": "tool", "tool_call_id": "", "content": "ok"}),
        buyer("invalid_tool_call_id", None),
    ),
    ("an unknown ID", body(asked("{}"), result(7)), buyer("tool_call_id_not_found", None)),
    ("a result before its call", body(result(0), asked("{}")), buyer("tool_call_id_not_found", None)),
    ("two results", body(asked("{}"), result(0), result(0)), buyer("duplicate_tool_call_id", None)),
    ("two calls of one ID", body(asked("{}"), asked("{}")), buyer("duplicate_tool_call_id", None)),
    ("a result over", body(*results(256 * KIB + 1)), buyer("tool_result_too_large", None, 413)),
    (
        "results over",
        body(*results(*[256 * KIB] * 4, 1)),
        buyer("tool_results_aggregate_too_large", None, 413),
    ),
    (
        "arguments over",
        body(asked(padded(MIB + 1))),
        buyer("tool_call_arguments_too_large", None, 413),
    ),
    (
        "all arguments over",
        body(asked(padded(MIB), padded(MIB), "{}")),
        buyer("tool_call_arguments_aggregate_too_large", None, 413),
    ),
    ("a bad name", body(tools=[function("a b")]), buyer("invalid_tools", "tools[0].function.name")),
    (
        "declared twice",
        body(tools=[function(), function()]),
        buyer("invalid_tools", "tools[1].function.name"),
    ),
    ("required alone", body(tool_choice="required"), buyer("invalid_request", "tool_choice")),
    (
        "none",
        body(tools=[function()], tool_choice="none"),
        buyer("unsupported_tool_choice", "tool_choice"),
    ),
    (
        "a tool turn of gpt-oss",
        body(asked("{}"), result(0), model=GPT_OSS.id),
        buyer("unsupported_modelID_for_multi_turn", None),
    ),
    (
        "a tool turn of no family",
        body(asked("{}"), result(0), model=PLAIN.id),
        buyer("unsupported_modelID_for_multi_turn", None),
    ),
    (
        "a schema that can't be held",
        body(response_format={"type": "json_object"}),
        buyer("unsupported_field", "response_format"),
    ),
    (
        "a prompt without room",
        body({"role": "user", "content": "x" * 4 * 40_000}),
        buyer("context_length_exceeded", "messages"),
    ),
]
SERVED: list[tuple[str, dict[str, Any]]] = [
    ("256 messages", body(*[USER] * 255)),
    ("128 calls", body(asked(*["{}"] * 128))),
    ("results in any order", body(asked("{}", "{}"), result(1), result(0))),
    ("no result", body(asked("{}"))),
]
# Their prompts are longer than the models' context: at the cap they get past every size check.
AT_THE_CAP: list[tuple[str, dict[str, Any]]] = [
    ("a result", body(*results(256 * KIB))),
    ("results", body(*results(*[256 * KIB] * 4))),
    ("arguments", body(asked(padded(MIB)))),
    ("all arguments", body(asked(padded(MIB), padded(MIB)))),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with Stack(tmp_path_factory.mktemp("stack"), {"text": "Hello."}, queue_seconds=60.0) as stack:
        yield stack


@pytest.fixture(params=["gateway", "provider"])
def refusing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who refuses: with "provider" the gateway's checks let everything pass."""
    if request.param == "provider":

        def unchecked(given: dict[str, Any], **_: Any) -> CheckedRequest:
            valid = check_request({"model": given["model"], "messages": [USER]}, contract="malibu")
            left = {key: value for key, value in given.items() if key not in ("stream", "stream_options")}
            return dataclasses.replace(valid, body=left, stream=bool(given.get("stream")))

        monkeypatch.setattr(chat, "check_request", unchecked)
        monkeypatch.setattr(chat, "check_for_model", lambda *_, **__: None)
    return str(request.param)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("given", "refusal"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_refused(it: Stack, refusing: str, given: dict[str, Any], refusal: Refusal) -> None:
    before = len(it.engine.asked)
    for fields in ({}, {"stream": True}):
        status, answer = await it.post(given | fields)
        error = answer["error"]
        assert set(error) == {
            "message",
            "type",
            "param",
            "code",
            "retryable",
            "request_id",
            "inference_ran",
        }
        assert (status, error["code"], error["param"], error["retryable"]) == refusal
        assert error["type"] == "invalid_request_error"
        assert error["inference_ran"] is False
    if refusal[1] != "context_length_exceeded":  # the engine counts the prompt
        assert len(it.engine.asked) == before
    # A buyer's fault doesn't count against the provider: it goes on getting jobs.
    assert it.core.board.routable


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("given", [row[1] for row in SERVED], ids=[row[0] for row in SERVED])
async def test_served(it: Stack, refusing: str, given: dict[str, Any]) -> None:
    status, answer = await it.post(given)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello.")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("given", [row[1] for row in AT_THE_CAP], ids=[row[0] for row in AT_THE_CAP])
async def test_a_size_at_the_cap_passes(it: Stack, refusing: str, given: dict[str, Any]) -> None:
    status, answer = await it.post(given)
    if status != 200:
        assert answer["error"]["code"] == "context_length_exceeded"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("over", [0, 1])
async def test_body_size(it: Stack, over: int) -> None:
    text = json.dumps(body(user="x")).encode()
    raw = text.replace(b'"x"', b'"' + b"x" * (limits.REQUEST_BODY_BYTES + over - len(text) + 1) + b'"')
    assert len(raw) == limits.REQUEST_BODY_BYTES + over
    status, answer = await it.post_raw(raw)
    if over:
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (413, "request_body_too_large", None)
    else:
        assert status == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_not_json_and_no_such_model(it: Stack) -> None:
    status, answer = await it.post_raw(b'{"model": ')
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_json", None)
    status, answer = await it.post(body(model="no-such-model"))
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
