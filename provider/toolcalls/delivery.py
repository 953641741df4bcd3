"""What every way to deliver an answer has in common (`delivery_modes` has the three).

A failure before any tool delta is out turns everything visible into plain text; after it, it is an error
(docs/contract.md, "What becomes a call", 8; on Harmony it always is). White space before a call is held back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import FinishReason
from provider.toolcalls.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from provider.toolcalls.marks import (
    Arguments,
    Broken,
    Cut,
    Done,
    Fatal,
    Fault,
    ForgetSpace,
    Held,
    Mark,
    Named,
    Reasoning,
    Released,
    Visible,
)
from provider.toolcalls.pieces import cut
from provider.toolcalls.policy import Cause
from provider.toolcalls.raw_text import RawText

# Where a call's first piece is cut: clients take empty arguments for `{}` however the stream goes on.
BRACE = "{"


class Delivery(ABC):
    """What the three ways share. `take` marks; `plain` and `failed` say how the answer stands.

    `may_be_plain`: a failed call's text may be shown. Events of a call use `index` from 0.
    """

    def __init__(self, mint: Callable[[], str], *, may_be_plain: bool) -> None:
        self._mint = mint
        self._may_be_plain = may_be_plain
        self._space = RawText()
        self._raw = RawText()
        self._next_index = 0
        self._name = ""
        self._calls = 0
        self._cut = False
        self._pending: Fault | None = None
        self.plain = False
        self.failed = False

    @property
    def at_rest(self) -> bool:
        """Visible text that doesn't end in white space passes unchanged."""
        return not self._calls and not self._space and not self._raw

    def take(self, mark: Mark) -> list[Event]:
        match mark:
            case Visible():
                return self._visible(mark)
            case Reasoning():
                return [ReasoningDelta(mark.text)]
            case Held():
                self._hold(mark)
            case Named():
                self._name = mark.name
            case Arguments():
                return self._arguments(mark.text)
            case Done():
                return self._done()
            case Released():
                return self._released()
            case Broken():
                return self._broken(mark)
            case Fatal():
                return self._fail(mark.code, mark.message)
            case Cut():
                self._cut = True
            case ForgetSpace():
                self._space.clear()
        return []

    def finish(self, cause: Cause) -> list[Event]:
        """The last events; `cause` is why generation ended."""
        if self.failed:
            return []
        if self._pending is not None:
            return self._fail(*self._code(Fault.UNFINISHED))
        if not self._calls:
            return [*self._all_visible(), Finished(FinishReason(cause))]
        reason = FinishReason.LENGTH if self._cut and cause == "length" else FinishReason.TOOL_CALLS
        return [Finished(reason)]

    # --- text --------------------------------------------------------------------------------------

    def _visible(self, mark: Visible) -> list[Event]:
        if self._calls:
            # Text after a call is dropped.
            return []
        text = mark.text.rstrip()
        if not text:
            self._space.add(*mark)
            return []
        before = self._space.take()
        if len(text) < len(mark.text):
            self._space.add(mark.text[len(text) :], mark.start + len(text))
        return _texts([*before, (text, mark.start)])

    def _hold(self, mark: Held) -> None:
        if self._may_be_plain and not self._out:
            self._raw.add(*mark)

    def _released(self) -> list[Event]:
        released = self._raw.take()
        return [event for text, start in released for event in self._visible(Visible(text, start))]

    def _all_visible(self) -> list[Event]:
        """Everything held back, as text."""
        return _texts([*self._space.take(), *self._raw.take()])

    # --- calls -------------------------------------------------------------------------------------

    @property
    def _out(self) -> bool:
        """A tool delta has left, so a failure can no longer be plain text."""
        return self._next_index > 0

    @abstractmethod
    def _arguments(self, text: str) -> list[Event]:
        """A piece of the call's arguments has come."""

    @abstractmethod
    def _done(self) -> list[Event]:
        """The call is complete and valid."""

    def _start(self, name: str) -> ToolCallStart:
        self._space.clear()
        self._raw.clear()
        index = self._next_index
        self._next_index += 1
        return ToolCallStart(index, self._mint(), name)

    def _say(self, text: str) -> list[Event]:
        index = self._next_index - 1
        return [ToolCallArgumentsDelta(index, piece) for piece in cut(text)]

    def _whole_call(self, name: str, arguments: str) -> list[Event]:
        start = self._start(name)
        first, rest = self._say(BRACE), self._say(arguments.removeprefix(BRACE))
        return [start, *first, *rest, ToolCallEnd(start.index)]

    # --- failures ------------------------------------------------------------------------------------

    def _broken(self, mark: Broken) -> list[Event]:
        self._drop_call()
        if self._may_be_plain and not self._out:
            self.plain = True
            return self._shown()
        if mark.pending:
            self._pending = mark.fault
            return []
        return self._fail(*self._code(mark.fault))

    def _shown(self) -> list[Event]:
        self._calls = 0
        return self._all_visible()

    @abstractmethod
    def _drop_call(self) -> None:
        """Forget what was collected of the call in the making."""

    def _code(self, fault: Fault) -> tuple[ErrorCode, str]:
        code = fault.code if self._may_be_plain else ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON
        return code, fault.message

    def _fail(self, code: ErrorCode, message: str) -> list[Event]:
        self.failed = True
        return [Failed(code, message)]


def _texts(segments: list[tuple[str, int]]) -> list[Event]:
    """One delta for each stretch of the raw output."""
    events: list[Event] = []
    for text, start in segments:
        last = events[-1] if events else None
        if isinstance(last, TextDelta) and last.start + len(last.text) == start:
            events[-1] = TextDelta(last.text + text, last.start)
        else:
            events.append(TextDelta(text, start))
    return events
