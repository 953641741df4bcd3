"""From a model's output to events: parser, choke point and delivery in a row, one lexeme at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

from gateway_protocol.families import Family
from gateway_protocol.tool_call_ids import mint
from provider.toolcalls.delivery import Delivery
from provider.toolcalls.delivery_modes import Buffered, Incremental, Whole
from provider.toolcalls.events import Event, ReasoningDelta, StopGeneration, TextDelta
from provider.toolcalls.families import MARKUP
from provider.toolcalls.formats.harmony import HarmonyParser
from provider.toolcalls.limits import CallGate
from provider.toolcalls.marks import Fatal, Mark
from provider.toolcalls.parser import CallParser
from provider.toolcalls.policy import CallPolicy, Cause

_WAYS: Final[dict[str, type[Delivery]]] = {"whole": Whole, "incremental": Incremental, "buffered": Buffered}


class Parser(Protocol):
    """What reads one family's output (`parser`, `formats.harmony`)."""

    @property
    def in_reasoning(self) -> bool: ...

    @property
    def at_rest(self) -> bool: ...

    @property
    def plain(self) -> bool: ...

    def push(self, text: str, token_id: int | None = None) -> None: ...

    def skip(self, length: int) -> int: ...

    def step(self) -> list[Mark] | None: ...

    def finish(self, cause: Cause) -> None: ...

    def go_plain(self) -> None: ...


class OutputInterpreter:
    """One answer. `feed` each token as it comes, then `finish` once; the events of both, in order, are all.

    After a `Failed` or a `StopGeneration` that is final, `feed` returns nothing more. After one that isn't
    (`strict` with `parallel_tool_calls: false`), go on feeding what the engine still emits: a second call
    fails the answer.
    """

    def __init__(self, policy: CallPolicy, *, mint_id: Callable[[], str] = mint) -> None:
        self._policy = policy
        self._parser = _parser(policy)
        self._gate = CallGate(policy)
        self._delivery = _WAYS[policy.delivery](mint_id, may_be_plain=policy.family is not Family.GPT_OSS)
        self._special = _special(policy)
        self._reasoning = policy.think is not None and policy.reasoning_open
        self._told_to_stop = False
        self._deaf = False
        self._finished = False

    @property
    def in_reasoning(self) -> bool:
        """The token fed last was reasoning or its marker, so it counts as a reasoning token."""
        return self._reasoning

    def feed(self, text: str, token_id: int | None = None) -> list[Event]:
        """The events that this token settles. `token_id` is what Harmony's messages are told by."""
        if self._deaf:
            self._reasoning = False
            return []
        if (plain := self.feed_plain(text)) is not None:
            return [plain]
        parser = self._parser
        was = parser.in_reasoning
        parser.push(text, token_id)
        events = self._drain()
        self._reasoning = was or parser.in_reasoning
        return events

    def feed_plain(self, text: str) -> TextDelta | ReasoningDelta | None:
        """`feed` for the text of any number of tokens, if none of them can mean anything but itself here.

        `None`: nothing was fed; feed them one by one.
        """
        parser = self._parser
        if self._deaf or self._told_to_stop or not parser.at_rest or not text:
            return None
        if self._special.search(text) is not None:
            return None
        if parser.in_reasoning:
            self._reasoning = True
            parser.skip(len(text))
            return ReasoningDelta(text)
        if not self._delivery.at_rest:
            return None
        self._reasoning = False
        return TextDelta(text, parser.skip(len(text)))

    def finish(self, cause: Cause) -> list[Event]:
        """Generation has ended: by the model (`stop`, also when it was told to) or by `max_tokens`."""
        if self._finished or self._delivery.failed:
            return []
        self._finished = True
        events: list[Event] = []
        if not self._deaf and not self._told_to_stop:
            self._parser.finish(cause)
            events = self._drain()
        self._deaf = True
        if self._delivery.failed:
            return events
        return [*events, *self._delivery.finish("stop" if self._told_to_stop else cause)]

    def _drain(self) -> list[Event]:
        events: list[Event] = []
        while not self._deaf and (marks := self._parser.step()) is not None:
            for mark in marks:
                passed = self._gate.check(mark)
                if self._told_to_stop and not isinstance(passed, Fatal):
                    continue
                events += self._delivery.take(passed)
                if self._delivery.failed:
                    self._deaf = True
                    break
                if self._delivery.plain and not self._parser.plain:
                    self._parser.go_plain()
                    break
                if self._gate.over and not self._told_to_stop:
                    stop = self._stop()
                    # At the end there is nothing left to stop.
                    events += [] if self._finished else [stop]
                    if self._deaf:
                        break
        return events

    def _stop(self) -> StopGeneration:
        """Under `malibu` nothing after the call counts; `strict` wants to know of a second one."""
        self._told_to_stop = True
        self._deaf = self._policy.contract != "strict"
        return StopGeneration(final=self._deaf)


def _parser(policy: CallPolicy) -> Parser:
    if policy.family is Family.GPT_OSS:
        return HarmonyParser(policy.tools)
    return CallParser(
        MARKUP[policy.family],
        policy.tools,
        think=policy.think,
        reasoning_open=policy.reasoning_open,
        plain=not policy.reads_calls,
    )


def _special(policy: CallPolicy) -> re.Pattern[str]:
    """What a piece of text at rest must not hold to pass unread: a line break, a character that a marker may
    begin with, white space at its end."""
    firsts = {"<", *(marker[:1] for marker in policy.think or ())}
    return re.compile(rf"[\n{re.escape(''.join(firsts))}]|\s\Z")
