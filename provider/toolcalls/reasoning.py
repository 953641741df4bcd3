"""Reasoning: its text without the markers' line breaks, and the calls drafted in it.

A call in reasoning is a draft, unless the reasoning is never closed: then a complete, declared call in it is
one, decided at a natural end (docs/contract.md, "What becomes a call", 7).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.marks import Arguments, Broken, Done, Mark, Named
from provider.toolcalls.policy import Cause

_BREAKS = "\r\n"


class DraftParser(Protocol):
    """What drafts are read with: the text families' own parser."""

    @property
    def at_rest(self) -> bool: ...

    def read(self, lexeme: Lexeme) -> None: ...

    def step(self) -> list[Mark] | None: ...

    def finish(self, cause: Cause) -> None: ...


class ReasoningText:
    """The stretches of reasoning of one output. `drafts` makes a parser, or `None` where calls aren't read;
    `declared`: the functions whose drafts count."""

    def __init__(self, drafts: Callable[[], DraftParser | None], declared: Container[str]) -> None:
        self._drafts = drafts
        self._declared = declared
        self._parser: DraftParser | None = None
        self._calls: list[Mark] = []
        self._call: list[Mark] = []
        self._held: list[str] = []
        self._begun = False
        self._read = False

    @property
    def at_rest(self) -> bool:
        return self._begun and not self._held and (self._parser is None or self._parser.at_rest)

    def open(self) -> None:
        self._begun = self._read = False

    def close(self) -> None:
        self._held.clear()
        self.drop_drafts()
        self.open()

    def drop_drafts(self) -> None:
        self._parser = None
        self._calls.clear()
        self._call.clear()

    def feed(self, lexeme: Lexeme) -> str:
        """What may be said of the reasoning now."""
        if not self._read:
            self._read = True
            self._parser = self._drafts()
            if lexeme.kind is Kind.THINK_OPEN:
                # The template has opened it in the prompt, and the model does so again.
                self._read = False
                return ""
        if self._parser is not None:
            self._parser.read(lexeme)
            self._drain(self._parser)
        return self._text(lexeme.text)

    def calls(self) -> list[Mark]:
        """The reasoning was never closed: the marks of its complete calls."""
        if self._parser is not None:
            self._parser.finish("stop")
            self._drain(self._parser)
        return self._calls

    def _text(self, text: str) -> str:
        """Line breaks wait until more than line breaks follows: those next to a marker belong to it."""
        if not self._begun:
            text = text.lstrip(_BREAKS)
            self._begun = bool(text)
        said = text.rstrip(_BREAKS)
        if not said:
            self._held.append(text)
            return ""
        before = "".join(self._held)
        self._held = [text[len(said) :]] if len(said) < len(text) else []
        return before + said

    def _drain(self, parser: DraftParser) -> None:
        while (marks := parser.step()) is not None:
            for mark in marks:
                if isinstance(mark, Broken):
                    self._call = []
                elif isinstance(mark, Named):
                    self._call = [mark] if mark.name in self._declared else []
                elif isinstance(mark, Arguments) and self._call:
                    self._call.append(mark)
                elif isinstance(mark, Done) and self._call:
                    self._calls += [*self._call, mark]
                    self._call = []
