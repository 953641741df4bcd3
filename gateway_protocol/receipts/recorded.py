"""What a buyer has kept of an answer: a completion, an error body, or the text of a recorded SSE stream."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gateway_protocol import strict_json
from gateway_protocol.answer import NO_ANSWER, Answer, AnswerCollector
from gateway_protocol.errors import ProtocolError
from gateway_protocol.messages import Delta
from gateway_protocol.receipts.forms import CHAIN_START, ReceiptUsage, chain_link

# Lines of an event stream end so and only so; `str.splitlines` would also cut at U+2028 inside a string.
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
# A stream that was cut before its first chunk holds at least a comment; other text is no stream at all.
_SAYS_STREAM: Final = re.compile(r"^(?:data|event|id|retry)?:", re.MULTILINE)


class UnreadableRecord(ProtocolError):
    """The record of a request or an answer isn't what it is said to be. Its message doesn't quote it."""


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """An answer as it came.

    `models`: every model ID in it. `usage`: `None` where the record doesn't tell. `chunks`, `chain`: number
    and last link of the deltas of a stream, `None` for a buffered answer. `receipt`: the one found inside.
    """

    answer: Answer
    models: frozenset[str]
    usage: ReceiptUsage | None
    chunks: int | None = None
    chain: str | None = None
    receipt: str | None = None


def read_response(response: Mapping[str, Any] | str) -> RecordedResponse:
    """Read a completion or error body (object or JSON text) or the text of an SSE stream.

    Raises `UnreadableRecord`.
    """
    if isinstance(response, str):
        text = response.lstrip("\ufeff \t\r\n")
        if not text.startswith("{"):
            return _read_stream(text)
        response = _json_object(text)
    try:
        return _read_body(response)
    except (KeyError, IndexError, TypeError, AttributeError, ValidationError):
        raise UnreadableRecord("the response is neither a completion nor an error") from None


def _read_body(body: Mapping[str, Any]) -> RecordedResponse:
    receipt = _receipt_in(body)
    if "error" in body:
        return RecordedResponse(NO_ANSWER, frozenset(), None, receipt=receipt)
    choice = body["choices"][0]
    message = choice["message"]
    answer = Answer(
        content=message.get("content") or None,
        reasoning_content=message.get("reasoning_content") or None,
        tool_calls=tuple(_signed_call(call) for call in message.get("tool_calls") or ()),
        finish_reason=choice["finish_reason"],
    )
    return RecordedResponse(answer, frozenset({body["model"]}), _usage_in(body), receipt=receipt)


def _signed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call["id"],
        "type": call["type"],
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


def _read_stream(text: str) -> RecordedResponse:
    """Fold the deltas as the gateway and the provider do, and chain them."""
    collector = AnswerCollector()
    models: set[str] = set()
    usage: ReceiptUsage | None = None
    receipt: str | None = None
    finish_reason: str | None = None
    chunks, link = 0, CHAIN_START
    for number, event in enumerate(_events(text), start=1):
        try:
            receipt = _receipt_in(event) or receipt
            if "error" in event:
                finish_reason = None
                break
            models.add(event["model"])
            usage = _usage_in(event) or usage
            for choice in event["choices"]:
                finish_reason = choice.get("finish_reason") or finish_reason
                if choice["delta"]:
                    delta = Delta.model_validate(choice["delta"])
                    collector.add(delta)
                    link = chain_link(link, chunks, delta)
                    chunks += 1
        except (KeyError, TypeError, AttributeError, ValueError):
            raise UnreadableRecord(f"event {number} of the stream is not a completion chunk") from None
    if not models and receipt is None and not _SAYS_STREAM.search(text):
        raise UnreadableRecord("the response is neither JSON nor an event stream")
    answer = collector.answer(finish_reason)
    return RecordedResponse(answer, frozenset(models), usage, chunks, link.hex(), receipt)


def _events(text: str) -> Iterator[dict[str, Any]]:
    """The JSON object of each event up to `[DONE]`; comments and other fields are skipped."""
    data: list[str] = []
    for line in [*_LINE_END.split(text), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            payload, data = "\n".join(data), []
            if payload == "[DONE]":
                return
            yield _json_object(payload)


def _usage_in(body: Mapping[str, Any]) -> ReceiptUsage | None:
    usage = body.get("usage")
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return ReceiptUsage(
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
    )


def _receipt_in(body: Mapping[str, Any]) -> str | None:
    malibu = body.get("malibu")
    receipt = malibu.get("receipt") if isinstance(malibu, Mapping) else None
    return receipt if isinstance(receipt, str) else None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = strict_json.loads(text)
    except strict_json.JsonError:
        value = None
    if not isinstance(value, dict):
        raise UnreadableRecord("the record of the response doesn't hold a JSON object where one must be")
    return value
