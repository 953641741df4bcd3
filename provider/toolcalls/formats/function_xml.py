"""Calls written as `<function=name><parameter=key>value</parameter></function>`, in `<tool_call>` or bare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway_protocol.limits import PARAMETER_NAME_CHARS
from provider.toolcalls.arguments import VALUE_DEPTH, ArgumentsBuilder
from provider.toolcalls.formats.body import Body, Outcome
from provider.toolcalls.formats.value_end import Member, ValueEnd, ValueScan
from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.literals import LiteralError
from provider.toolcalls.marks import Fault
from provider.toolcalls.value_types import STRING, ParameterTypes, typed

_PARAMETER: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{PARAMETER_NAME_CHARS}}}")


class XmlBody(Body):
    """Fed with the function's opener first. A string value leaves as it comes, others when they end."""

    def __init__(self, schema: Mapping[str, Any] | None, *, wrapped: bool) -> None:
        super().__init__()
        self._types = ParameterTypes(schema)
        self._wrapped = wrapped
        self._builder = ArgumentsBuilder()
        self._opened = False
        self._closed = False
        self._value: ValueScan | None = None
        self._text: TextValue | None = None

    def feed(self, lexeme: Lexeme) -> Outcome:
        if not self._opened:
            self._opened = True
            self.named(lexeme.name)
            return Outcome.OPEN
        if self._value is not None:
            return self._in_value(self._value, lexeme)
        if lexeme.is_blank():
            return Outcome.OPEN
        return self._behind(lexeme) if self._closed else self._first(lexeme)

    def finish(self) -> Outcome:
        if self._closed:
            return Outcome.DONE
        end = None if self._value is None else self._value.finish()
        return self.broken(Fault.UNFINISHED) if end is None else self._ended(end)

    # --- between the function's opener and its first parameter -----------------------------------

    def _first(self, lexeme: Lexeme) -> Outcome:
        if lexeme.kind is Kind.PARAMETER_OPEN:
            return self._begin(lexeme.name)
        if lexeme.kind is Kind.FUNCTION_CLOSE and self._wrapped:
            self._closed = True
            self._close()
            return Outcome.OPEN
        if lexeme.kind is (Kind.CALL_CLOSE if self._wrapped else Kind.FUNCTION_CLOSE):
            self._close()
            return Outcome.DONE
        return self.broken(Fault.MARKUP)

    def _behind(self, lexeme: Lexeme) -> Outcome:
        """Behind the closer of a function without parameters, inside the wrapper."""
        if lexeme.kind is Kind.CALL_CLOSE:
            return Outcome.DONE
        self.leftover = [lexeme]
        if lexeme.kind is Kind.CALL_OPEN:
            return Outcome.DONE
        if lexeme.kind is Kind.FUNCTION_OPEN:
            return Outcome.DONE_INSIDE
        self.leftover = []
        return self.broken(Fault.ARGUMENTS)

    # --- values ----------------------------------------------------------------------------------

    def _begin(self, name: str) -> Outcome:
        if not self._may_be_parameter(name):
            return self.broken(Fault.MARKUP)
        if self._builder.has(name):
            return self.broken(Fault.REPEATED)
        self._value = ValueScan(
            name,
            wrapped=self._wrapped,
            given=self._builder.names,
            declared=self._types.declared.__contains__,
            any_name=self._types.any_name,
        )
        self._builder.member(name)
        self._text = TextValue() if self._types.of(name) == STRING else None
        self.arguments(self._builder.take())
        return Outcome.OPEN

    def _may_be_parameter(self, name: str) -> bool:
        return _PARAMETER.fullmatch(name) is not None or name in self._types.declared

    def _in_value(self, value: ValueScan, lexeme: Lexeme) -> Outcome:
        end = value.feed(lexeme)
        if self._text is not None and (certain := self._text.feed("".join(value.certain))):
            self._builder.text(certain)
            self.arguments(self._builder.take())
        value.certain.clear()
        return Outcome.OPEN if end is None else self._ended(end)

    def _ended(self, end: ValueEnd) -> Outcome:
        if end.broken:
            return self.broken(Fault.MARKUP)
        fault = self._members(end.members)
        self._value = None
        if fault is not None:
            return self.broken(fault)
        if end.next_parameter is not None:
            return self._begin(end.next_parameter.name)
        self.leftover = end.leftover
        self._close()
        return Outcome.DONE_INSIDE if end.inside else Outcome.DONE

    def _members(self, members: list[Member]) -> Fault | None:
        """The first one's name, and maybe a part of its text, has been said."""
        for index, (name, text) in enumerate(members):
            if index and (self._builder.has(name) or not self._may_be_parameter(name)):
                return Fault.REPEATED if self._builder.has(name) else Fault.MARKUP
            if index:
                self._builder.member(name)
            try:
                self._say(name, text, index == 0)
            except LiteralError as error:
                return error.fault
        return None

    def _say(self, name: str, text: str, is_first: bool) -> None:
        if is_first and self._text is not None:
            self._builder.text(text[self._text.said :])
            self._builder.end_text()
        else:
            self._builder.value(typed(text, self._types.of(name), VALUE_DEPTH))

    def _close(self) -> None:
        self._builder.close()
        self.arguments(self._builder.take())


class TextValue:
    """A string value as it comes: all but what may turn out to be the newline before its closer."""

    def __init__(self) -> None:
        self.said = 0
        self._newline = ""
        self._held = ""
        self._begun = False

    def feed(self, piece: str) -> str:
        """What may be said now; `said` counts its characters."""
        text = self._held + piece
        if not self._begun:
            if text in ("", "\r"):
                self._held = text
                return ""
            self._begun = True
            self._newline = "\r\n" if text.startswith("\r\n") else "\n"
            text = text.removeprefix(self._newline)
        ends = [end for end in (self._newline, self._newline[:-1]) if end and text.endswith(end)]
        self._held = ends[0] if ends else ""
        out = text[: len(text) - len(self._held)]
        self.said += len(out)
        return out
