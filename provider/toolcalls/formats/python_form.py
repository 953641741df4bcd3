"""Calls written as `name(key=value, …)` inside `<tool_call>`: Python literals become JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway_protocol.limits import FUNCTION_NAME_CHARS
from provider.toolcalls.arguments import VALUE_DEPTH, ArgumentsBuilder
from provider.toolcalls.formats.body import Body, Outcome
from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.literals import LiteralError, to_json
from provider.toolcalls.marks import Broken, Fault

OPENING: Final = re.compile(rf"\s*([A-Za-z0-9_-]{{1,{FUNCTION_NAME_CHARS}}})\(")
OPENING_BEGUN: Final = re.compile(rf"\s*[A-Za-z0-9_-]{{0,{FUNCTION_NAME_CHARS}}}")
_PLAIN: Final = re.compile(r"[^'\"()\[\]{},]*")
_IN_STRING: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_MEMBER: Final = re.compile(r"\s*([A-Za-z0-9_-]{1,128})\s*=(.*)", re.DOTALL)


class PythonBody(Body):
    """Fed from the name on. A member leaves when its value is complete."""

    def __init__(self, _schema: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._builder = ArgumentsBuilder()
        self._opening = ""
        self._named = False
        self._quote = ""
        self._escaped = False
        self._depth = 0
        self._member: list[str] = []
        self._closed = False
        self._failed = False
        self._after: list[Lexeme] = []

    def feed(self, lexeme: Lexeme) -> Outcome:
        if self._failed:
            return self.broken(Fault.ARGUMENTS) if lexeme.kind is Kind.CALL_CLOSE else Outcome.OPEN
        if self._closed:
            return self._behind(lexeme)
        if lexeme.kind is Kind.CALL_CLOSE and not self._quote:
            return self.broken(Fault.ARGUMENTS)
        position = 0
        if not self._named:
            position = self._read_name(lexeme.text)
        while position < len(lexeme.text) and not self._closed and not self._failed:
            position = self._step(lexeme.text, position)
        self.arguments(self._builder.take())
        if self._failed:
            self.marks.append(Broken(Fault.ARGUMENTS, pending=True))
            return Outcome.OPEN
        if self._closed and position < len(lexeme.text):
            return self._behind(lexeme.rest(position))
        return Outcome.OPEN

    def finish(self) -> Outcome:
        done = self._closed and not self._failed and not self._after
        return Outcome.DONE if done else self.broken(Fault.UNFINISHED)

    def _read_name(self, text: str) -> int:
        """The opening has been recognised before, so it is complete in the first lexemes."""
        begun = len(self._opening)
        self._opening += text
        match = OPENING.match(self._opening)
        if match is None:
            return len(text)
        self._named = True
        self.named(match.group(1))
        return match.end() - begun

    def _step(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            self._member.append(text[position])
            return position + 1
        run = (_IN_STRING[self._quote] if self._quote else _PLAIN).match(text, position)
        end = position if run is None else run.end()
        self._member.append(text[position:end])
        if end == len(text):
            return end
        char = text[end]
        if self._quote:
            self._escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in "'\"":
            self._quote = char
        elif char in ",)" and self._depth == 0:
            self._end_member(closing=char == ")")
            return end + 1
        else:
            self._depth += {"(": 1, "[": 1, "{": 1, ",": 0}.get(char, -1)
        self._member.append(char)
        return end + 1

    def _end_member(self, *, closing: bool) -> None:
        text = "".join(self._member)
        self._member.clear()
        self._closed = closing
        match = _MEMBER.fullmatch(text)
        if match is not None and not self._builder.has(match.group(1)):
            try:
                value = to_json(match.group(2), VALUE_DEPTH)
            except LiteralError:
                self._failed = True
                return
            self._builder.member(match.group(1))
            self._builder.value(value)
        elif text.strip() or not closing:
            self._failed = True
        if closing and not self._failed:
            self._builder.close()

    def _behind(self, lexeme: Lexeme) -> Outcome:
        """Behind the closing parenthesis: the wrapper's closer, or another call, whose name may be cut."""
        if not self._after and lexeme.is_blank():
            return Outcome.OPEN
        self._after.append(lexeme)
        if lexeme.kind is Kind.TEXT:
            return self._another_call()
        if len(self._after) > 1:
            return self.broken(Fault.ARGUMENTS)
        if lexeme.kind is Kind.CALL_CLOSE:
            return Outcome.DONE
        if lexeme.kind not in (Kind.CALL_OPEN, Kind.FUNCTION_OPEN):
            return self.broken(Fault.ARGUMENTS)
        self.leftover = [lexeme]
        return Outcome.DONE if lexeme.kind is Kind.CALL_OPEN else Outcome.DONE_INSIDE

    def _another_call(self) -> Outcome:
        text = "".join(lexeme.text for lexeme in self._after)
        if OPENING.match(text):
            self.leftover = [Lexeme(Kind.TEXT, text, self._after[0].start)]
            return Outcome.DONE_INSIDE
        return Outcome.OPEN if OPENING_BEGUN.fullmatch(text) else self.broken(Fault.ARGUMENTS)
