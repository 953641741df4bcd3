"""What stands behind an opener: the beginning of a call in one of the family's formats, or prose."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from provider.toolcalls.families import Format, Markup
from provider.toolcalls.lexer import Kind, Lexeme


class Verdict(Enum):
    UNDECIDED = auto()
    CALL = auto()
    PROSE = auto()


class Decision(NamedTuple):
    """For `CALL`: the format, and the lexemes that its reader is to be fed."""

    verdict: Verdict
    form: Format | None = None
    lexemes: tuple[Lexeme, ...] = ()


_UNDECIDED = Decision(Verdict.UNDECIDED)
_PROSE = Decision(Verdict.PROSE)


class Opening:
    """`feed` what follows the opener until it is decided.

    `wrapped`: the opener is a wrapper's (`<tool_call>`), else it is the bare function's own lexeme, `first`.
    `held`: all that was fed and hasn't decided it, the opener included.
    """

    def __init__(self, markup: Markup, *, wrapped: bool, first: Lexeme | None = None) -> None:
        self._markup = markup
        self.wrapped = wrapped
        self.held = [] if first is None else [first]
        self._behind: list[Lexeme] = []  # the text that a format may have begun with

    def feed(self, lexeme: Lexeme) -> Decision:
        decision = self._decide(lexeme)
        if decision.verdict is Verdict.UNDECIDED:
            self.held.append(lexeme)
        return decision

    def _decide(self, lexeme: Lexeme) -> Decision:
        if not self._behind and (lexeme.is_blank() or (self.wrapped and lexeme.kind is Kind.CALL_OPEN)):
            return _UNDECIDED
        if self.wrapped:
            return self._wrapped(lexeme)
        if lexeme.kind in (Kind.PARAMETER_OPEN, Kind.FUNCTION_CLOSE):
            return Decision(Verdict.CALL, self._markup.bare_function, (*self.held, lexeme))
        return _PROSE

    def _wrapped(self, lexeme: Lexeme) -> Decision:
        """Text behind the opener comes in any number of pieces: a format sees all of it as one."""
        whole = lexeme
        if lexeme.kind is Kind.TEXT:
            pieces = (*self._behind, lexeme)
            whole = Lexeme(Kind.TEXT, "".join(piece.text for piece in pieces), pieces[0].start)
        undecided = False
        for form in self._markup.wrapped:
            if form.begins_with is lexeme.kind:
                begins = form.recognise(whole.text)
                if begins:
                    return Decision(Verdict.CALL, form, (whole,))
                undecided = undecided or begins is None
        if undecided:
            self._behind.append(lexeme)
        return _UNDECIDED if undecided else _PROSE
