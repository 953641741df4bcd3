"""What every call format's reader has in common: lexemes in, marks out, and how the call stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum, auto

from provider.toolcalls.lexer import Lexeme
from provider.toolcalls.marks import Arguments, Broken, Fault, Mark, Named


class Outcome(Enum):
    """How a call stands after a lexeme.

    `OPEN`: more is needed. `DONE`: complete. `DONE_INSIDE`: complete, and what follows stands in the same
    wrapper. `NOT_A_CALL`: it only looked like one. `BROKEN`: a failure, its `Broken` is among the marks.
    """

    OPEN = auto()
    DONE = auto()
    DONE_INSIDE = auto()
    NOT_A_CALL = auto()
    BROKEN = auto()


class Body(ABC):
    """Reads one call. After each `feed` take `marks`; after the last one also `leftover`.

    `leftover`: lexemes that don't belong to the call, to be read again, in order; those before the last one
    fed may be among them.
    """

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.leftover: list[Lexeme] = []

    @abstractmethod
    def feed(self, lexeme: Lexeme) -> Outcome:
        """Read the next lexeme of the call."""

    @abstractmethod
    def finish(self) -> Outcome:
        """The model ended its turn."""

    def broken(self, fault: Fault) -> Outcome:
        self.marks.append(Broken(fault))
        return Outcome.BROKEN

    def named(self, name: str) -> None:
        self.marks.append(Named(name))

    def arguments(self, text: str) -> None:
        if text:
            self.marks.append(Arguments(text))
