"""docs/contract.md says what the code does, and its examples run against answers in the contract's form."""

from __future__ import annotations

import importlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, OpenAI

from gateway_protocol import limits
from gateway_protocol.errors import ERROR_RULES, ApiError, ErrorCode
from gateway_protocol.validation import check_request, parse_body

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "contract.md").read_text()
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
CALL_ID = "call_" + "ab" * 16


# --- the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_shows_the_examples_as_they_are(path: Path) -> None:
    assert f"```python\n{path.read_text()}```\n" in PAGE


def error_rows() -> dict[str, list[str]]:
    """Cells after the first of each row of the error table, by code."""
    table = PAGE[PAGE.index("| `code` | HTTP |") :]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")][1:]
    return {code: cells[1:] for cells in rows for code in re.findall(r"`(\w+)`", cells[0])}


def test_the_error_table_is_the_codes() -> None:
    rows = error_rows()
    for code, (http, retry, param, *_) in rows.items():
        rule = ERROR_RULES[ErrorCode(code)]
        assert http in ("event", str(rule.http_status), f"{rule.http_status}, event"), code
        assert retry == ("yes" if rule.retryable else "no"), code
        if rule.http_status >= 413:
            assert param == "–", code
    assert {ErrorCode(code) for code in rows} == set(ErrorCode)


def test_the_limits_are_the_codes() -> None:
    kib, mib = limits.KIB, limits.MIB
    assert f"at most {limits.REQUEST_BODY_BYTES // mib} MiB in UTF-8" in PAGE
    assert f"at most {limits.REQUEST_DEPTH} levels deep" in PAGE
    assert f"| messages | {limits.MESSAGES_DEFAULT}, unless" in PAGE
    assert f"| calls in the history | {limits.HISTORY_TOOL_CALLS} |" in PAGE
    assert f"| {limits.TOOL_RESULT_BYTES // kib} KiB / {limits.TOOL_RESULTS_BYTES // mib} MiB |" in PAGE
    arguments = (
        f"{limits.HISTORY_ARGUMENTS_BYTES // mib} MiB / {limits.HISTORY_ARGUMENTS_TOTAL_BYTES // mib} MiB"
    )
    assert f"| {arguments} |" in PAGE
    assert f"deeper than {limits.EMITTED_ARGUMENTS_DEPTH} levels" in PAGE
    assert f"pieces of at\nmost {limits.ARGUMENTS_PIECE_BYTES // kib} KiB" in PAGE


# --- the examples -------------------------------------------------------------------------------


class CannedGateway(BaseHTTPRequestHandler):
    """Checks each request as a gateway does, then gives the next answer: a message, or lines of a stream."""

    protocol_version = "HTTP/1.1"
    answers: list[Any]
    requests: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = parse_body(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            check_request(body, contract="malibu")
        except ApiError as error:
            return self._send(error.http_status, "application/json", json.dumps(error.envelope("req_1")))
        self.requests.append(body)
        answer = self.answers.pop(0)
        if not isinstance(answer, list):
            return self._send(200, "application/json", json.dumps(answer))
        text = "".join(f"data: {line if isinstance(line, str) else json.dumps(line)}\n\n" for line in answer)
        return self._send(200, "text/event-stream", ": keepalive\n\n" + text)

    def _send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def gateway(*answers: Any) -> Iterator[tuple[OpenAI, list[dict[str, Any]]]]:
    handler = type("Handler", (CannedGateway,), {"answers": list(answers), "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield client, handler.requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    return importlib.import_module


def completion(finish_reason: str, **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant"} | message}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def called(arguments: str, name: str = "get_weather") -> dict[str, Any]:
    call = {"id": CALL_ID, "type": "function", "function": {"name": name, "arguments": arguments}}
    return completion("tool_calls", content=None, tool_calls=[call])


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }


def call_piece(**piece: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0} | piece]})


HEAD = [
    chunk({"role": "assistant", "content": ""}),
    call_piece(id=CALL_ID, type="function", function={"name": "get_weather", "arguments": ""}),
    call_piece(function={"arguments": "{"}),
    call_piece(function={"arguments": '"city": '}),
]
TAIL = call_piece(function={"arguments": '"Oslo"}'})


def test_single_turn(example: Any) -> None:
    ask = example("single_turn").ask
    with gateway(called('{"city": "Oslo"}'), completion("stop", content="It snows.")) as (client, _):
        assert ask(client, "m", "Weather in Oslo?") == [("get_weather", {"city": "Oslo"})]
        assert ask(client, "m", "Weather in Oslo?") == "It snows."


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (called('{"city": 5}'), "don't fit the schema"),
        (called("{}"), "don't fit the schema"),
        (called("[]"), "must be a JSON object"),
        (called('{"city": "Os'), "not JSON"),
        (called("{}", name="rm"), "no tool called rm"),
    ],
)
def test_a_call_is_validated_before_it_is_run(example: Any, answer: dict[str, Any], message: str) -> None:
    with gateway(answer) as (client, _), pytest.raises(ValueError, match=message):
        example("single_turn").ask(client, "m", "Weather in Oslo?")


def test_an_answer_that_was_cut_is_not_acted_upon(example: Any) -> None:
    with gateway(completion("length", content="<tool_call>")) as (client, _), pytest.raises(RuntimeError):
        example("single_turn").ask(client, "m", "Weather in Oslo?")


def test_feeding_a_result_back(example: Any) -> None:
    answers = (called('{"town": "Oslo"}'), called('{"city": "Oslo"}'), completion("stop", content="-3 °C"))
    # The same ID on two calls would be a duplicate: each call of a conversation has its own.
    answers[1]["choices"][0]["message"]["tool_calls"][0]["id"] = "call_" + "cd" * 16
    with gateway(*answers) as (client, requests):
        assert example("feed_result_back").converse(client, "m", "Weather in Oslo?") == "-3 °C"
    last = requests[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "assistant", "tool"]
    assert last[2]["content"].startswith("error: the arguments don't fit the schema")
    assert json.loads(last[4]["content"]) == {"city": "Oslo", "celsius": -3}


def test_rebuilding_a_call_from_a_stream(example: Any) -> None:
    with gateway([*HEAD, TAIL, chunk({}, "tool_calls"), "[DONE]"]) as (client, _):
        text, calls = example("rebuild_from_stream").stream(client, "m", "Weather in Oslo?")
    assert text == ""
    assert calls == [(CALL_ID, "get_weather", {"city": "Oslo"})]


def test_text_from_a_stream(example: Any) -> None:
    lines = [HEAD[0], chunk({"content": "It "}), chunk({"content": "snows."}), chunk({}, "stop"), "[DONE]"]
    with gateway(lines) as (client, _):
        assert example("rebuild_from_stream").stream(client, "m", "Weather?") == ("It snows.", [])


def test_no_call_is_taken_from_a_stream_that_ended_in_an_error(example: Any) -> None:
    error = ApiError(ErrorCode.MALFORMED_TOOL_CALL, "The call broke off.", inference_ran=True)
    lines = [*HEAD, TAIL, error.envelope("req_1"), "[DONE]"]
    with gateway(lines) as (client, _), pytest.raises(APIError) as caught:
        example("rebuild_from_stream").stream(client, "m", "Weather in Oslo?")
    assert caught.value.code == "malformed_tool_call"


@pytest.mark.parametrize("lines", [[*HEAD, TAIL], HEAD, [*HEAD, chunk({}, "length"), "[DONE]"]])
def test_no_call_is_taken_from_a_stream_that_was_cut(example: Any, lines: list[Any]) -> None:
    with gateway(lines) as (client, _), pytest.raises(RuntimeError):
        example("rebuild_from_stream").stream(client, "m", "Weather in Oslo?")
