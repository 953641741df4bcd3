r"""Where the value of a function-XML parameter ends, decided by structure, never by the first closer.

A value may hold anything, closers and whole example calls included (docs/contract.md, "What becomes a call",
4). So a closer counts only by what stands around it, white space aside:

    </parameter> <parameter=…>                     the value ends, the next one begins
    </parameter> </function> </tool_call>          the call ends (without a wrapper: at </function>)
    </parameter> … the opener of a next call       the call ends too; its own closers were lost
    </parameter> and anything else                 text of the value, unless no other closer comes before
                                                   the next opener or </function>

A call quoted in the value (`<function=…>` with a parameter or a closer next) opens and closes inside it. A
parameter quoted at the beginning of a line does as well, unless closers are short at the end: then either a
`</parameter>` was lost, and a declared parameter that nobody else gives begins there, or it was a mention.
So does one behind a `</parameter>` whose name the function doesn't have or has been given: a closer too many
tells that both were quoted (a template that shows the markup), else it is a parameter all the same.
Until that is known, nothing more of the value is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from provider.toolcalls.lexer import Kind, Lexeme

Member = tuple[str, str]
_TAGS = (Kind.FUNCTION_OPEN, Kind.CALL_OPEN)
_BEGUN = ("<parameter", "<function")
_P, _F, _T = Kind.PARAMETER_CLOSE, Kind.FUNCTION_CLOSE, Kind.CALL_CLOSE
_TO, _FO = Kind.CALL_OPEN, Kind.FUNCTION_OPEN
# What closers may be followed by and still be on the way to an end: the rest of the closing sequence, some
# of it lost, then the opener of the next call.
_CLOSERS = {(_P,), (_P, _F), (_P, _T), (_F,), (_F, _T), (_P, _F, _T)}
_ON_THE_WAY = {closers + opener for closers in _CLOSERS for opener in ((), (_TO,), (_FO,), (_TO, _FO))}


@dataclass(slots=True)
class ValueEnd:
    """`members`: name and raw text of the value, and of those found in it where closers were lost.

    `next_parameter`: the opener that ended it. Else the call is over, `inside`: another follows in the same
    wrapper. `leftover`: to be read again. `broken`: the markup can't be read.
    """

    members: list[Member] = field(default_factory=list)
    next_parameter: Lexeme | None = None
    inside: bool = False
    leftover: list[Lexeme] = field(default_factory=list)
    broken: bool = False


@dataclass(slots=True)
class _Opener:
    """A parameter opener inside the value: its place in the pieces, and that of the closer before it."""

    at: int
    name: str
    closer_at: int | None


class ValueScan:
    """One value, fed from behind its opener. `certain` pieces of raw text belong to it whatever comes."""

    def __init__(
        self,
        name: str,
        *,
        wrapped: bool,
        given: Collection[str],
        declared: Callable[[str], bool],
        any_name: bool,
    ) -> None:
        self._name = name
        self._wrapped = wrapped
        self._given = given
        self._declared = declared
        self._any_name = any_name
        self._pieces: list[str] = []
        self._tail: list[Lexeme] = []
        self._kinds: tuple[Kind, ...] = ()
        self._openers: list[_Opener] = []
        self._closers: list[int] = []
        self._nested = 0
        self._doubtful = False  # the first of the nested stands behind a closer: it may be a parameter
        self._quoted = 0
        self._previous: Kind | None = None
        self._blank_line = True
        self._inline = True
        self._may_have_ended: int | None = None
        self._uncertain = False
        self.certain: list[str] = []

    def feed(self, lexeme: Lexeme) -> ValueEnd | None:
        """`None`: the value goes on."""
        if self._tail:
            return self._in_tail(lexeme)
        self._in_value(lexeme)
        return None

    def finish(self) -> ValueEnd | None:
        """The model ended its turn: where the call may have ended, it has. `None`: the value was cut."""
        if self._kinds and (self._at_parameter() or len(self._kinds) > 1):
            return self._ended(*self._next_call())
        if self._may_have_ended is not None:
            return ValueEnd(self._members(self._may_have_ended))
        return None

    # --- text of the value ---------------------------------------------------------------------

    def _in_value(self, lexeme: Lexeme) -> None:
        kind = lexeme.kind
        if kind in (_P, _F) and not self._quoted and not (kind is _F and self._previous is _FO):
            self._tail, self._kinds = [lexeme], (kind,)
            return
        if kind is Kind.PARAMETER_OPEN:
            self._parameter_opener(lexeme)
        elif kind is _F and self._previous is _P:
            self._quoted -= 1
        self._append(lexeme)

    def _parameter_opener(self, lexeme: Lexeme, closer_at: int | None = None) -> None:
        if self._previous is _FO:
            self._quoted += 1
        elif not self._quoted and (closer_at is not None or self._blank_line or self._runs_on(lexeme.name)):
            self._nested += 1
            self._uncertain = True
            self._openers.append(_Opener(len(self._pieces), lexeme.name, closer_at))

    def _runs_on(self, name: str) -> bool:
        """All on one line, and right behind the text: `<parameter=to>desk<parameter=text>…`."""
        last = self._pieces[-1] if self._pieces else ""
        return self._inline and not last[-1:].isspace() and self._is_missing(name)

    def _is_missing(self, name: str) -> bool:
        return self._declared(name) and name not in self._given

    def _append(self, lexeme: Lexeme) -> None:
        text = lexeme.text
        if not self._pieces:
            self._inline = not text.startswith(("\n", "\r"))
        self._pieces.append(text)
        if not self._uncertain:
            self.certain.append(text)
        if not lexeme.is_blank():
            self._previous = lexeme.kind
        _head, newline, line = text.rpartition("\n")
        self._blank_line = (bool(newline) or self._blank_line) and not (line and not line.isspace())

    # --- a closer, and what comes behind it ------------------------------------------------------

    def _in_tail(self, lexeme: Lexeme) -> ValueEnd | None:
        if lexeme.is_blank():
            self._tail.append(lexeme)
            return None
        kinds = (*self._kinds, lexeme.kind)
        if kinds == (_P, Kind.PARAMETER_OPEN):
            return self._next_parameter(lexeme)
        if kinds == ((_P, _F, _T) if self._wrapped else (_P, _F)):
            return self._ended([], inside=False)
        if self._opens_call(lexeme):
            leftover, inside = self._next_call()
            return self._ended([*leftover, lexeme], inside=inside)
        if kinds in _ON_THE_WAY:
            self._tail.append(lexeme)
            self._kinds = kinds
            return None
        if kinds == (_P, Kind.TEXT) and not self._nested and lexeme.text.lstrip().startswith(_BEGUN):
            return ValueEnd(broken=True)
        self._was_text(lexeme)
        return self.feed(lexeme)

    def _next_parameter(self, lexeme: Lexeme) -> ValueEnd | None:
        expected = lexeme.name not in self._given and (self._any_name or self._declared(lexeme.name))
        if expected and self._at_parameter():
            return ValueEnd(self._members(len(self._pieces)), next_parameter=lexeme)
        doubtful, closer_at = self._at_parameter(), len(self._pieces)
        self._uncertain = True
        self._was_text(lexeme, closes=True)
        self._parameter_opener(lexeme, closer_at)
        self._append(lexeme)
        self._doubtful = doubtful
        return None

    def _at_parameter(self) -> bool:
        """Nothing quoted is open, but for what may be a parameter itself."""
        return self._nested == int(self._doubtful)

    def _opens_call(self, lexeme: Lexeme) -> bool:
        """Behind `<function=…>` a parameter or a closer, behind `<tool_call>` a JSON object: a real call."""
        if self._kinds[-1] is _FO:
            return lexeme.kind in (Kind.PARAMETER_OPEN, _F)
        return self._kinds[-1] is _TO and lexeme.text.lstrip().startswith("{")

    def _next_call(self) -> tuple[list[Lexeme], bool]:
        """The lexemes of the tail from the next call's opener on, and whether it stands in this wrapper."""
        at = next((i for i, lexeme in enumerate(self._tail) if lexeme.kind in _TAGS), None)
        if at is None:
            return [], False
        return self._tail[at:], self._wrapped and self._tail[at].kind is _FO

    def _was_text(self, lexeme: Lexeme, *, closes: bool = False) -> None:
        """The tail is part of the value after all."""
        if self._kinds[0] is _P:
            between = "".join(piece.text for piece in self._tail[1:]) + lexeme.text
            ends_line = len(self._kinds) > 1 or "\n" in between[: len(between) - len(between.lstrip())]
            if self._nested:
                self._nested -= closes or ends_line
                self._doubtful = self._doubtful and self._nested > 0
            elif ends_line and (self._blank_line or self._inline):
                self._closers.append(len(self._pieces))
                self._uncertain = True
        if self._kinds[:2] == (_P, _F):
            self._may_have_ended = len(self._pieces)
            self._uncertain = True
        tail, self._tail, self._kinds = self._tail, [], ()
        for piece in tail:
            self._append(piece)

    # --- the end ---------------------------------------------------------------------------------

    def _ended(self, leftover: list[Lexeme], inside: bool) -> ValueEnd:
        return ValueEnd(self._members(len(self._pieces)), inside=inside, leftover=leftover)

    def _members(self, end: int) -> list[Member]:
        """The value up to `end`; where closers are short, the parameters that its text runs into."""
        if not self._nested:
            return [(self._name, self._between(0, self._closed(0, end)))]
        last = {opener.name: opener for opener in self._openers}
        members: list[Member] = []
        name, start, found = self._name, 0, {self._name}
        for opener in self._openers:
            closer_at = opener.closer_at
            if closer_at is not None and closer_at >= start:
                stop = closer_at
            elif last[opener.name] is opener and opener.name not in found and self._is_missing(opener.name):
                stop = self._closed_in(start, opener.at)
            else:
                continue
            members.append((name, self._between(start, stop)))
            name, start = opener.name, opener.at + 1
            found.add(name)
        return [*members, (name, self._between(start, self._closed(start, end)))]

    def _closed(self, start: int, end: int) -> int:
        """Where a value that runs up to `end` ends: where `</parameter>` was lost, at the last one before."""
        return self._closed_in(start, end) if self._kinds[:1] == (_F,) else end

    def _closed_in(self, start: int, end: int) -> int:
        return next((at for at in reversed(self._closers) if start <= at < end), end)

    def _between(self, start: int, end: int) -> str:
        return one_newline_off("".join(self._pieces[start:end]))


def one_newline_off(text: str) -> str:
    """The value between its tags: one newline goes at each end, and nothing else does."""
    newline = "\r\n" if text.startswith("\r\n") else "\n"
    return text.removeprefix(newline).removesuffix(newline)
