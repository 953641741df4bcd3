"""One raw output read to its end, and what came of it: the yardstick of every format's tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy, OutputInterpreter, split_special
from provider.toolcalls.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    StopGeneration,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

THINK = ("<think>", "</think>")
FAMILIES = {
    "qwen_coder": Family.QWEN,
    "qwen_hermes": Family.QWEN,
    "harmony": Family.GPT_OSS,
    "llama3": Family.LLAMA,
    "none": Family.NONE,
}
Piece = tuple[str, int | None]
HALF_AN_ESCAPE = re.compile(r"(?<!\\)(\\\\)*\\(u[0-9a-fA-F]{0,3})?\Z")


@dataclass
class Call:
    name: str
    call_id: str
    pieces: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@dataclass
class Answer:
    """What the events of one output add up to, checked for what holds of every answer."""

    events: list[Event]
    raw: str
    calls: list[Call] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    error: str | None = None
    message: str = ""
    stopped: bool = False

    def __post_init__(self) -> None:
        for number, event in enumerate(self.events):
            self._take(event)
            if isinstance(event, Finished | Failed):
                assert number == len(self.events) - 1, "nothing may follow the end"
        assert (self.finish_reason is None) != (self.error is None), "one end, no more"
        if self.error is None:
            assert (self.finish_reason == "tool_calls") <= bool(self.calls)
        for call in self.calls:
            if call.ended:
                assert isinstance(strict_json(call.arguments), dict)

    def _take(self, event: Event) -> None:
        match event:
            case TextDelta():
                assert not self.calls, "no content may follow a tool delta"
                assert self.raw[event.start : event.start + len(event.text)] == event.text != ""
                self.text += event.text
            case ReasoningDelta():
                assert event.text
                self.reasoning += event.text
            case ToolCallStart():
                assert event.index == len(self.calls)
                assert re.fullmatch(r"call_[0-9a-f]{32}", event.call_id)
                self.calls.append(Call(event.name, event.call_id))
            case ToolCallArgumentsDelta():
                call = self.calls[event.index]
                assert event.text
                assert len(event.text.encode("utf-8", "surrogatepass")) <= 2048
                assert call.pieces or event.text == "{", "the first piece is the brace"
                assert not HALF_AN_ESCAPE.search(event.text[-40:]) or event.text.endswith("\\" * 40)
                call.pieces.append(event.text)
            case ToolCallEnd():
                self.calls[event.index].ended = True
            case StopGeneration():
                self.stopped = True
            case Finished():
                self.finish_reason = event.finish_reason.value
            case Failed():
                self.error, self.message = event.code.value, event.message

    @property
    def content(self) -> str | None:
        """As a buffered answer has it: prose beside a call is dropped."""
        return None if self.calls else self.text or None

    def result(self) -> dict[str, Any]:
        """In the shape of a case's `expect`; the arguments parsed where the call is complete."""
        if self.error is not None:
            return {"error": self.error}
        calls = [
            {"name": call.name, "arguments": strict_json(call.arguments) if call.ended else call.arguments}
            for call in self.calls
        ]
        return {"finish_reason": self.finish_reason, "calls": calls, "content": self.content}


def strict_json(text: str) -> Any:
    """JSON as RFC 8259 has it: no `NaN`, and no key twice."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands there twice")
        return found

    return json.loads(text, parse_constant=refuse, object_pairs_hook=members)


def tokens(family: Family, text: str) -> list[Piece]:
    return split_special(family, text)


def cut_every(pieces: Iterable[Piece], size: int) -> list[Piece]:
    """Text in pieces of `size` characters; special tokens are never cut."""
    out: list[Piece] = []
    for text, token_id in pieces:
        if token_id is not None or not size:
            out.append((text, token_id))
        else:
            out += [(text[at : at + size], None) for at in range(0, len(text), size)]
    return out


def cut_once(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """One cut inside every tag and around every character beyond ASCII, one at a time.

    The part of a code point that a token may hold has no text, so an empty piece stands there.
    """
    for number, (text, token_id) in enumerate(pieces):
        if token_id is not None:
            continue
        places = {at for tag in re.finditer(r"<[^<>]*>", text) for at in range(tag.start() + 1, tag.end())}
        places |= {at for at, char in enumerate(text) if not char.isascii()}
        for at in sorted(places):
            parts: list[Piece] = [(text[:at], None), ("", None), (text[at:], None)]
            yield [*pieces[:number], *parts, *pieces[number + 1 :]]


def cuts(family: Family, text: str) -> Iterator[list[Piece]]:
    """Every way to cut an output that the contract names."""
    whole = tokens(family, text)
    yield whole
    for size in (1, 2, 3, 7, 16):
        yield cut_every(whole, size)
    if len(text) < 4_000:
        yield from cut_once(whole)


def read(policy: CallPolicy, pieces: Iterable[Piece], finish: str = "stop") -> Answer:
    """Drive an interpreter as the pipeline does."""
    interpreter = OutputInterpreter(policy)
    events: list[Event] = []
    raw: list[str] = []
    over = final = False
    for text, token_id in pieces:
        raw.append(text)
        new = interpreter.feed(text, token_id)
        assert not (over and new), "nothing may follow the end"
        for event in new:
            final = final or (isinstance(event, StopGeneration) and event.final)
            over = over or final or isinstance(event, Failed)
        events += new
    events += interpreter.finish("length" if finish == "length" and not final else "stop")
    assert interpreter.finish("stop") == []
    return Answer(events, "".join(raw))


def policy_of(case: dict[str, Any], delivery: str = "buffered", **changes: Any) -> CallPolicy:
    """The policy of a line of cases."""
    family = FAMILIES[case["family"]]
    policy = CallPolicy(
        family=family,
        tools={tool["function"]["name"]: tool["function"].get("parameters") for tool in case["tools"]},
        parallel=case["parallel"],
        delivery=delivery,  # type: ignore[arg-type]
        think=THINK if family is Family.QWEN else None,
    )
    return replace(policy, **changes)


def fits(expected: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether a result is the expected one or another that the case accepts."""
    return any(_is(one, got) for one in (expected, *expected.get("also_ok", ())))


def _is(expected: dict[str, Any], got: dict[str, Any]) -> bool:
    if "error" in expected or "error" in got:
        return expected.get("error") == got.get("error")
    if expected["finish_reason"] != got["finish_reason"]:
        return False
    # Dumped, so that true is not 1 and an integer is exact.
    if json.dumps(expected["calls"], sort_keys=True) != json.dumps(got["calls"], sort_keys=True):
        return False
    wanted, content = (expected["content"] or "").strip(), (got["content"] or "").strip()
    match expected.get("content_match"):
        case "any":
            return True
        case "contains":
            return wanted in content
    return wanted == content
