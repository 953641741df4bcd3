"""The end-of-turn token, where an engine reports it as text: no part of the answer."""

from __future__ import annotations

from collections.abc import Iterable

from provider.toolcalls.lexer import Kind, Lexeme


class TurnEnd:
    """Holds back end-of-turn markers, and white space behind them, until more follows. If nothing ever does,
    they were the end of the turn and are gone; else the model wrote about them, and they are text."""

    def __init__(self) -> None:
        self._held: list[Lexeme] = []

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def feed(self, lexemes: Iterable[Lexeme]) -> list[Lexeme]:
        out: list[Lexeme] = []
        for lexeme in lexemes:
            if lexeme.kind is Kind.END_OF_TURN or (self._held and lexeme.is_blank()):
                self._held.append(lexeme)
                continue
            out += [held.rest(0) for held in self._held]
            self._held.clear()
            out.append(lexeme)
        return out
