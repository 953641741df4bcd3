"""What the parser says to the choke point and the delivery, one step at a time.

Text of a call in the making comes twice: as `Held`, raw, so that a call which fails can still become plain
text, and as `Named` and `Arguments`, read. `Released`: what was held since the opener is prose after all.

    text        Visible · Reasoning · ForgetSpace
    a call      Held* · Named · Arguments+ · Done            complete
                Held* · Released                             no call after all, the parser goes on
                Held* · (Named · Arguments*)? · Broken       a failure; `pending`: how it ends is still open
                Held* · (Named · Arguments*)? · Cut          `max_tokens` came first
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway_protocol.errors import ErrorCode


class Fault(Enum):
    """Why a call is none. The value: its code on a stream whose tool deltas are out, and the words."""

    MARKUP = (ErrorCode.MALFORMED_TOOL_CALL, "The markup of a tool call broke off inside the call.")
    UNFINISHED = (ErrorCode.MALFORMED_TOOL_CALL, "The model ended its turn inside a tool call.")
    NAME = (ErrorCode.MALFORMED_TOOL_CALL, "The model called a function that the request doesn't declare.")
    DEPTH = (ErrorCode.MALFORMED_TOOL_CALL, "The arguments of a tool call are nested too deeply.")
    SIZE = (ErrorCode.MALFORMED_TOOL_CALL, "The arguments of a tool call are larger than 1 MiB.")
    REPEATED = (ErrorCode.MALFORMED_TOOL_CALL, "A tool call names the same parameter twice.")
    ARGUMENTS = (
        ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON,
        "The arguments of a finished tool call are not one JSON object.",
    )
    SCHEMA = (
        ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON,
        "The arguments of a finished tool call don't fit the function's strict schema.",
    )

    @property
    def code(self) -> ErrorCode:
        return self.value[0]

    @property
    def message(self) -> str:
        return self.value[1]


class Visible(NamedTuple):
    """Visible text; `start` is its offset in the raw output."""

    text: str
    start: int


class Reasoning(NamedTuple):
    text: str


class ForgetSpace(NamedTuple):
    """White space held back since the last visible character belonged to markup."""


class Held(NamedTuple):
    """Raw text of what may become a call; `start` is its offset. One that begins before the
    last one's end replaces it from there: the parser looked ahead and reads on from there."""

    text: str
    start: int


class Released(NamedTuple):
    pass


class Named(NamedTuple):
    name: str


class Arguments(NamedTuple):
    """The next piece of the arguments' JSON text, cut at no escape; the pieces before it stand."""

    text: str


class Done(NamedTuple):
    pass


class Broken(NamedTuple):
    fault: Fault
    pending: bool = False


class Cut(NamedTuple):
    pass


class Fatal(NamedTuple):
    """The choke point's own: the answer ends in this error however it is delivered."""

    code: ErrorCode
    message: str


Mark = Visible | Reasoning | ForgetSpace | Held | Released | Named | Arguments | Done | Broken | Cut | Fatal
