"""Harmony (gpt-oss): messages with a header and a body, told apart by token IDs, never by their text.

    HEADER ──<|message|>──▶ BODY ──<|end|>, <|call|>, <|return|>──▶ BETWEEN ──<|start|>──▶ HEADER

The prompt ends in `<|start|>assistant`, so the output begins inside a header. The recipient may stand in any
part of it, on any channel; the content type may lack its token. A message to a function is a call; the others
are content (`final`, `commentary`), reasoning (`analysis`) or hidden (a channel that nobody knows, a message
in another's name), as docs/contract.md, "What becomes a call", 7 has it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final

from provider.toolcalls.envelope import JSON_BLANKS, ObjectText
from provider.toolcalls.families import HARMONY_TOKENS, Schemas
from provider.toolcalls.formats.harmony_header import Header, MessageKind
from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.marks import Arguments, Broken, Cut, Done, Fault, Mark, Named, Reasoning, Visible
from provider.toolcalls.policy import Cause
from provider.toolcalls.value_types import ParameterTypes

_CLOSERS: Final = frozenset({Kind.END, Kind.CALL, Kind.RETURN, Kind.END_OF_TURN})
# Those behind which the turn is over: a call without a body was meant, not given up.
_LAST: Final = _CLOSERS - {Kind.END}


class _State(Enum):
    HEADER = auto()
    BODY = auto()
    BETWEEN = auto()


class HarmonyParser:
    """One output, one token at a time; the interface of `parser.CallParser`."""

    plain = False

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._queue: deque[Lexeme] = deque()
        self._offset = 0
        self._state = _State.HEADER
        self._message = MessageKind.HIDDEN
        self._header = Header(prompted=True)
        self._arguments = ObjectText()
        self._name = ""
        self._named = False
        self._blank: list[str] = []
        self._finishing: Cause | None = None
        self._closed = False

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.BODY and self._message in (MessageKind.REASONING, MessageKind.HIDDEN)

    @property
    def at_rest(self) -> bool:
        """In content or reasoning: text passes unchanged, and `skip` may be called instead of `push`."""
        passing = self._message in (MessageKind.CONTENT, MessageKind.REASONING)
        return passing and self._state is _State.BODY and not self._queue

    def skip(self, length: int) -> int:
        start = self._offset
        self._offset += length
        return start

    def push(self, text: str, token_id: int | None = None) -> None:
        special = None if token_id is None else HARMONY_TOKENS.get(token_id)
        kind = Kind.TEXT if special is None else special[1]
        self._queue.append(Lexeme(kind, text, self._offset))
        self._offset += len(text)

    def finish(self, cause: Cause) -> None:
        self._finishing = cause

    def go_plain(self) -> None:
        """A failed call on Harmony is an error, never text: nothing to do."""

    def step(self) -> list[Mark] | None:
        if not self._queue:
            if self._finishing is None or self._closed:
                return None
            self._closed = True
            return self._close(self._finishing)
        lexeme = self._queue.popleft()
        if lexeme.kind is Kind.TEXT:
            return self._text(lexeme)
        return self._special(lexeme)

    # --- tokens ------------------------------------------------------------------------------------

    def _special(self, lexeme: Lexeme) -> list[Mark]:
        kind = lexeme.kind
        if kind is Kind.MESSAGE:
            return self._open() if self._state is not _State.BODY else []
        if kind is Kind.CONSTRAIN:
            self._header.content_type_follows()
            return []
        marks = self._end(kind) if self._state is _State.BODY else self._bodiless(lexeme)
        if kind is Kind.CHANNEL:
            if self._state is not _State.HEADER:
                self._header = Header(prompted=True)
            self._state = _State.HEADER
            self._header.channel_follows()
        elif kind is Kind.START:
            self._state = _State.HEADER
            self._header = Header(prompted=False)
        elif kind in _CLOSERS:
            self._state = _State.BETWEEN
            self._header = Header(prompted=True)
        return marks

    def _text(self, lexeme: Lexeme) -> list[Mark]:
        if self._state is _State.HEADER:
            self._header.add(lexeme.text)
            return self._unaddressed(lexeme)
        if self._state is _State.BETWEEN or not lexeme.text:
            return []
        if self._message is MessageKind.CONTENT:
            return [Visible(lexeme.text, lexeme.start)]
        if self._message is MessageKind.REASONING:
            return [Reasoning(lexeme.text)]
        return self._call_text(lexeme) if self._message is MessageKind.CALL else []

    def _unaddressed(self, lexeme: Lexeme) -> list[Mark]:
        """Text at the very beginning that is no header: an answer without any channel."""
        if not self._header.is_no_header():
            return []
        self._state, self._message = _State.BODY, MessageKind.CONTENT
        text = self._header.text
        return [Visible(text, lexeme.start + len(lexeme.text) - len(text))]

    # --- messages ----------------------------------------------------------------------------------

    def _open(self) -> list[Mark]:
        header, self._state = self._header, _State.BODY
        self._message = header.kind()
        if self._message is not MessageKind.CALL:
            return []
        self._arguments = ObjectText()
        self._name = header.function()
        self._named = False
        self._blank.clear()
        # On the analysis channel the first character tells arguments from thoughts about the function.
        return [] if header.is_analysis() and self._name in self._schemas else self._tell_name()

    def _tell_name(self) -> list[Mark]:
        self._named = True
        return [Named(self._name)]

    def _call_text(self, lexeme: Lexeme) -> list[Mark]:
        arguments = self._arguments
        if arguments.done or arguments.fault is not None:
            junk = arguments.fault is None and lexeme.text.strip(JSON_BLANKS)
            return self._broken(Fault.ARGUMENTS) if junk else []
        taken = arguments.feed(lexeme.text)
        if arguments.is_object is False and not self._named:
            self._message = MessageKind.REASONING
            before = "".join(self._blank)
            return [Reasoning(before + lexeme.text)]
        marks: list[Mark] = []
        if arguments.is_object is None:
            self._blank.append(lexeme.text)
        elif not self._named:
            marks += self._tell_name()
        if piece := arguments.take():
            marks.append(Arguments(piece))
        if arguments.fault is not None:
            return [*marks, *self._broken(arguments.fault)]
        if lexeme.text[taken:].strip(JSON_BLANKS):
            return [*marks, *self._broken(Fault.ARGUMENTS)]
        return marks

    def _bodiless(self, closer: Lexeme) -> list[Mark]:
        """A message that ends in its header: the body's opener is missing."""
        header = self._header
        if self._state is not _State.HEADER or closer.kind not in _CLOSERS:
            return []
        if header.kind() is MessageKind.CALL and closer.kind in _LAST:
            return [Named(header.function()), *self._broken(Fault.ARGUMENTS)]
        answer = header.answer()
        return [Visible(answer, closer.start - len(answer))] if answer else []

    def _broken(self, fault: Fault) -> list[Mark]:
        self._message = MessageKind.HIDDEN
        return [Broken(fault)]

    def _end(self, closer: Kind) -> list[Mark]:
        """The message is over: by its closer, by the next one's beginning, by a natural end."""
        if self._message is MessageKind.REASONING and self._name and closer is Kind.CALL:
            # Thoughts addressed to a function and sent as a call: not its arguments.
            return [Named(self._name), *self._broken(Fault.ARGUMENTS)]
        if self._message is not MessageKind.CALL:
            self._name = ""
            return []
        marks = [] if self._named else self._tell_name()
        name, self._name = self._name, ""
        if self._arguments.done:
            return [*marks, Done()]
        if self._arguments.is_object is None and not ParameterTypes(self._schemas.get(name)).required:
            # An empty body to a function that needs nothing: absent arguments.
            return [*marks, Arguments("{}"), Done()]
        return [*marks, *self._broken(Fault.ARGUMENTS)]

    def _close(self, cause: Cause) -> list[Mark]:
        if self._state is _State.HEADER and self._header.is_bare_text():
            text = self._header.text
            return [Visible(text, self._offset - len(text))]
        if self._state is _State.HEADER and (answer := self._header.answer()):
            return [Visible(answer, self._offset - len(answer))]
        addressed = self._state is _State.HEADER and self._header.kind() is MessageKind.CALL
        in_call = self._state is _State.BODY and self._message is MessageKind.CALL
        if cause == "length":
            return [Cut()] if addressed or in_call else []
        if addressed:
            return [Named(self._header.function()), Broken(Fault.UNFINISHED)]
        return self._end(Kind.END) if in_call else []
