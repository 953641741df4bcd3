"""Calls that are one JSON object: Hermes (`<tool_call>{…}</tool_call>`) and Llama (`{…}`, maybe tagged)."""

from __future__ import annotations

from dataclasses import dataclass

from provider.toolcalls.envelope import JSON_BLANKS, Envelope
from provider.toolcalls.formats.body import Body, Outcome
from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.marks import Broken, Fault


@dataclass(frozen=True, slots=True)
class JsonForm:
    """`argument_keys`: in order of choice. `closed_by_marker`: `</tool_call>` ends the call, else its brace.

    `must_prove_itself`: the object stands in plain text without any marker, so what isn't plainly a call is
    an ordinary JSON answer: other keys, no arguments, no name.
    """

    argument_keys: tuple[str, str]
    closed_by_marker: bool = True
    must_prove_itself: bool = False


HERMES = JsonForm(("arguments", "parameters"))
LLAMA_TAGGED = JsonForm(("parameters", "arguments"), closed_by_marker=False)
LLAMA_BARE = JsonForm(("parameters", "arguments"), closed_by_marker=False, must_prove_itself=True)


class JsonBody(Body):
    def __init__(self, form: JsonForm) -> None:
        super().__init__()
        self._form = form
        self._envelope = Envelope(form.argument_keys, no_other_keys=form.must_prove_itself)
        self._told_name = False
        self._waiting: list[str] = []  # arguments that came before the name
        self._failed = False

    def feed(self, lexeme: Lexeme) -> Outcome:
        if self._failed:
            return self._until_closed(lexeme)
        envelope = self._envelope
        if envelope.done:
            return self._behind(lexeme)
        if lexeme.kind is Kind.CALL_CLOSE and self._form.closed_by_marker and not envelope.in_string:
            return self.broken(Fault.ARGUMENTS)
        taken = envelope.feed(lexeme.text)
        if self._form.must_prove_itself and self._is_ordinary():
            self.leftover = [lexeme.rest(taken)] if taken < len(lexeme.text) else []
            return Outcome.NOT_A_CALL
        self._tell()
        if envelope.fault is not None:
            return self._fault(envelope.fault)
        if not envelope.done:
            return Outcome.OPEN
        return self._closed(lexeme, taken)

    def finish(self) -> Outcome:
        if self._envelope.done and not self._failed:
            return Outcome.DONE
        return self.broken(Fault.UNFINISHED)

    def _is_ordinary(self) -> bool:
        """A JSON answer, not a call."""
        envelope = self._envelope
        ended = envelope.done or envelope.fault is not None
        return ended and (envelope.name is None or not envelope.begun)

    def _tell(self) -> None:
        envelope = self._envelope
        piece = envelope.take()
        certain = envelope.begun or not self._form.must_prove_itself
        if not self._told_name and envelope.name is not None and certain:
            self._told_name = True
            self.named(envelope.name)
            self.arguments("".join(self._waiting))
            self._waiting.clear()
        if self._told_name:
            self.arguments(piece)
        elif piece:
            self._waiting.append(piece)

    def _closed(self, lexeme: Lexeme, taken: int) -> Outcome:
        if not self._told_name:
            return self._fault(Fault.ARGUMENTS)
        if taken < len(lexeme.text):
            if self._form.closed_by_marker:
                return self._behind(lexeme.rest(taken))
            self.leftover = [lexeme.rest(taken)]
        return Outcome.OPEN if self._form.closed_by_marker else Outcome.DONE

    def _behind(self, lexeme: Lexeme) -> Outcome:
        """Behind the object, before the closing marker."""
        if lexeme.kind is Kind.TEXT and not lexeme.text.strip(JSON_BLANKS):
            return Outcome.OPEN
        if lexeme.kind is Kind.CALL_CLOSE:
            return Outcome.DONE
        self.leftover = [lexeme]
        if lexeme.kind is Kind.CALL_OPEN:
            return Outcome.DONE
        if lexeme.kind is Kind.FUNCTION_OPEN or lexeme.text.lstrip(JSON_BLANKS).startswith("{"):
            return Outcome.DONE_INSIDE
        self.leftover = []
        return self._fault(Fault.ARGUMENTS)

    def _fault(self, fault: Fault) -> Outcome:
        """A JSON error is one of the arguments once the call has closed, which it may still do."""
        if fault is not Fault.ARGUMENTS or not self._form.closed_by_marker:
            return self.broken(Fault.MARKUP if fault is Fault.ARGUMENTS else fault)
        self._failed = True
        self.marks.append(Broken(Fault.ARGUMENTS, pending=True))
        return Outcome.OPEN

    def _until_closed(self, lexeme: Lexeme) -> Outcome:
        return self.broken(Fault.ARGUMENTS) if lexeme.kind is Kind.CALL_CLOSE else Outcome.OPEN
