"""How an answer ended, read off its bytes: each has exactly one end, or the buyer left before it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_DATA = re.compile(rb"^data: (.*?)\r?$", re.MULTILINE)


class End(StrEnum):
    """`LEFT`: the buyer went first, so no end is owed."""

    FINISHED = "finished"
    ERROR_EVENT = "error_event"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Ending:
    """`fault` `None`: all is well; else what is wrong, without a word of the answer."""

    end: End | None
    fault: str | None


def read_end(raw: bytes, *, left: bool, may_succeed: bool = True) -> Ending:
    """`raw`: the whole response, headers too. `may_succeed`: False for a request that has to be refused."""
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else 0
    if left:
        return Ending(End.LEFT, None if _ends(body) <= 1 else "more than one end")
    if status == 0:
        return Ending(None, "no response")
    if status != 200:
        refused = b'"error"' in body and b"data: " not in body
        return Ending(End.REFUSED, None if refused else f"status {status} without an error envelope")
    if not may_succeed:
        return Ending(None, "a request that has to be refused was answered")
    if b"text/event-stream" in head.lower():
        return _of_stream(body)
    return Ending(End.FINISHED, None if b'"finish_reason":"' in body else "a 200 without a finish reason")


def _of_stream(body: bytes) -> Ending:
    events = _DATA.findall(body)
    if not events or events[-1] != b"[DONE]" or events.count(b"[DONE]") != 1:
        return Ending(None, f"{events.count(b'[DONE]')} [DONE] in a stream that ended")
    finished, errors = _counts(events[:-1])
    if finished + errors != 1:
        return Ending(None, f"{finished} finish reasons and {errors} errors in one stream")
    return Ending(End.FINISHED if finished else End.ERROR_EVENT, None)


def _ends(body: bytes) -> int:
    return sum(_counts([event for event in _DATA.findall(body) if event != b"[DONE]"]))


def _counts(events: Sequence[bytes]) -> tuple[int, int]:
    """Events with a finish reason, and error events; one that was cut in the middle is neither."""
    finished = errors = 0
    for event in events:
        try:
            document = json.loads(event)
        except ValueError:
            continue
        errors += "error" in document
        finished += any(choice.get("finish_reason") for choice in document.get("choices") or ())
    return finished, errors
