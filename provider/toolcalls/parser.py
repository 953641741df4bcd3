"""The one incremental parser of the text families, run by the family's row in `families.MARKUP`.

`push` output, then `step` until it has nothing more: each step reads one lexeme and gives its marks, so that
whoever reads them can say in between that everything is plain text from here on (`go_plain`).

    TEXT ──opener──▶ OPENING ──a format begins──▶ CALL ──complete──▶ TEXT (OPENING inside a wrapper)
      ▲ ▲                └──prose after all──▶ TEXT  └──broken, no call──▶ TEXT
      │ └──think closer── REASONING ◀──think opener── TEXT
      └── after go_plain() openers are text; reasoning is told apart all the same
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

from gateway_protocol.limits import PARAMETER_NAME_CHARS
from provider.toolcalls.families import Format, Markup
from provider.toolcalls.formats.body import Body, Outcome
from provider.toolcalls.lexer import Kind, Lexeme, Lexer
from provider.toolcalls.lines import LineTracker
from provider.toolcalls.marks import (
    Cut,
    Done,
    ForgetSpace,
    Held,
    Mark,
    Reasoning,
    Released,
    Visible,
)
from provider.toolcalls.policy import Cause
from provider.toolcalls.reasoning import ReasoningText

Schemas = Mapping[str, Mapping[str, Any] | None]


class _State(Enum):
    TEXT = auto()
    OPENING = auto()
    CALL = auto()
    REASONING = auto()


class CallParser:
    """One output. `plain`: calls are not read (any more)."""

    def __init__(
        self,
        markup: Markup,
        schemas: Schemas,
        *,
        think: tuple[str, str] | None = None,
        reasoning_open: bool = False,
        plain: bool = False,
    ) -> None:
        self._markup = markup
        self._schemas = schemas
        self._lexer = _lexer(markup, schemas, think)
        self._lines = LineTracker(markup.separators)
        self._queue: deque[Lexeme] = deque()
        self._end_of_turn: list[Lexeme] = []
        self._opening: list[Lexeme] = []  # all lexemes since the opener
        self._behind: list[Lexeme] = []  # the text among them that a format may begin with
        self._wrapped = False
        self._body: Body | None = None
        self._bare_object = False
        self._after_reasoning = False
        self._seen_text = False
        self._finishing: Cause | None = None
        self._closed = False
        self._marker_cut = False
        self.plain = plain
        self._state = _State.TEXT
        self._reasoning = ReasoningText(self._drafts, schemas)
        if think is not None and reasoning_open:
            self._state = _State.REASONING
        self._handlers: dict[_State, Callable[[Lexeme], list[Mark]]] = {
            _State.TEXT: self._on_text,
            _State.OPENING: self._on_opening,
            _State.CALL: self._on_call,
            _State.REASONING: self._on_reasoning,
        }

    def _drafts(self) -> CallParser | None:
        """A parser for calls in reasoning that may never be closed."""
        return None if self.plain else CallParser(self._markup, self._schemas)

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.REASONING

    @property
    def at_rest(self) -> bool:
        """In the middle of a line of text or reasoning, with nothing held: what holds no marker's beginning,
        no line break and no brace passes unchanged, and `skip` may be called instead of `push`."""
        if self._queue or self._end_of_turn or self._lexer.holding or self._after_reasoning:
            return False
        if self._state is _State.REASONING:
            return self._reasoning.at_rest
        return self._state is _State.TEXT and self._seen_text and self._lines.settled

    def skip(self, length: int) -> int:
        """Text of this length went by at rest; returns its offset."""
        start = self._lexer.offset
        self._lexer.skip(length)
        return start

    def push(self, text: str, _token_id: int | None = None) -> None:
        self._queue.extend(self._lexer.feed(text))

    def read(self, lexeme: Lexeme) -> None:
        """Queue what another parser has cut."""
        self._queue.append(lexeme)

    def finish(self, cause: Cause) -> None:
        """The output is over; `step` gives the last marks."""
        self._finishing = cause
        holding = self._lexer.holding
        self._marker_cut = bool(holding) and any(
            marker.startswith(holding)
            for marker, kind in (*self._markup.fixed.items(), *self._markup.named.items())
            if kind in (Kind.CALL_OPEN, Kind.FUNCTION_OPEN)
        )
        self._queue.extend(self._lexer.finish())

    def go_plain(self) -> None:
        """Nothing that comes is a call any more. What was held of one has been dealt with."""
        self.plain = True
        self._reset()
        self._reasoning.drop_drafts()

    def _reset(self) -> None:
        self._forget_opening()
        self._body = None
        if self._state is not _State.REASONING:
            self._state = _State.TEXT

    def step(self) -> list[Mark] | None:
        """Read one lexeme; `None`: nothing is left to read."""
        if not self._queue:
            return self._close() if self._finishing and not self._closed else None
        lexeme = self._queue.popleft()
        if lexeme.kind is Kind.END_OF_TURN or (self._end_of_turn and lexeme.is_blank()):
            self._end_of_turn.append(lexeme)
            return []
        if self._end_of_turn:
            # The model went on, so what looked like the end of its turn was text.
            self._queue.appendleft(lexeme)
            self._queue.extendleft(held.rest(0) for held in reversed(self._end_of_turn))
            self._end_of_turn.clear()
            lexeme = self._queue.popleft()
        return self._handlers[self._state](lexeme)

    # --- text ------------------------------------------------------------------------------------

    def _on_text(self, lexeme: Lexeme) -> list[Mark]:
        kind = lexeme.kind
        if kind is Kind.TEXT:
            return self._plain_text(lexeme)
        if kind is Kind.THINK_OPEN and self._lines.blank and not self._lines.fenced:
            self._state = _State.REASONING
            self._reasoning.open()
            return [] if self._seen_text else [ForgetSpace()]
        if kind is Kind.THINK_CLOSE and not self._seen_text:
            self._after_reasoning = True
            return [ForgetSpace()]
        if not self.plain and not self._lines.fenced:
            if kind is Kind.CALL_OPEN:
                return self._open(lexeme, wrapped=True)
            if kind is Kind.FUNCTION_OPEN and self._markup.bare_function is not None:
                return self._open(lexeme, wrapped=False)
        return self._visible(lexeme)

    def _plain_text(self, lexeme: Lexeme) -> list[Mark]:
        if self._after_reasoning:
            text = lexeme.text.lstrip("\r\n")
            if not text:
                return []
            self._after_reasoning = False
            lexeme = lexeme.rest(len(lexeme.text) - len(text))
        if self.plain or self._markup.bare_object is None:
            return self._visible(lexeme)
        at = self._lines.bare_object(lexeme.text)
        before = lexeme.text[:at]
        self._seen_text = self._seen_text or not (before.isspace() or not before)
        marks: list[Mark] = [Visible(before, lexeme.start)] if before else []
        if at is not None:
            self._wrapped = False
            marks += self._begin(self._markup.bare_object, lexeme.rest(at))
        return marks

    def _visible(self, lexeme: Lexeme) -> list[Mark]:
        self._after_reasoning = False
        self._lines.feed(lexeme.text)
        self._seen_text = self._seen_text or not lexeme.is_blank()
        return [Visible(lexeme.text, lexeme.start)]

    # --- reasoning -------------------------------------------------------------------------------

    def _on_reasoning(self, lexeme: Lexeme) -> list[Mark]:
        if lexeme.kind is Kind.THINK_CLOSE:
            self._state = _State.TEXT
            self._after_reasoning = True
            self._lines.new_line()
            self._reasoning.close()
            return []
        text = self._reasoning.feed(lexeme)
        return [Reasoning(text)] if text else []

    # --- behind an opener ------------------------------------------------------------------------

    def _open(self, lexeme: Lexeme, *, wrapped: bool) -> list[Mark]:
        self._state = _State.OPENING
        self._wrapped = wrapped
        return self._hold(lexeme)

    def _hold(self, lexeme: Lexeme) -> list[Mark]:
        self._opening.append(lexeme)
        return [Held(lexeme.text, lexeme.start)]

    def _forget_opening(self) -> None:
        self._opening.clear()
        self._behind.clear()

    def _on_opening(self, lexeme: Lexeme) -> list[Mark]:
        if not self._behind and (lexeme.is_blank() or (self._wrapped and lexeme.kind is Kind.CALL_OPEN)):
            return self._hold(lexeme)
        if self._wrapped:
            return self._wrapped_opening(lexeme)
        if lexeme.kind in (Kind.PARAMETER_OPEN, Kind.FUNCTION_CLOSE) and self._markup.bare_function:
            return self._begin(self._markup.bare_function, *self._opening, lexeme)
        return self._release(lexeme)

    def _wrapped_opening(self, lexeme: Lexeme) -> list[Mark]:
        """Text behind the opener comes in any number of pieces: a format sees all of it as one."""
        whole = lexeme
        if lexeme.kind is Kind.TEXT:
            text = "".join(piece.text for piece in (*self._behind, lexeme))
            whole = Lexeme(Kind.TEXT, text, (*self._behind, lexeme)[0].start)
        undecided = False
        for form in self._markup.wrapped:
            if form.begins_with is lexeme.kind:
                begins = form.recognise(whole.text)
                if begins:
                    return self._begin(form, whole)
                undecided = undecided or begins is None
        if not undecided:
            return self._release(lexeme)
        self._behind.append(lexeme)
        return self._hold(lexeme)

    def _release(self, lexeme: Lexeme) -> list[Mark]:
        """Prose that mentions an opener: the text goes on with this lexeme."""
        self._queue.appendleft(lexeme)
        self._state = _State.TEXT
        for piece in self._opening:
            self._lines.feed(piece.text)
        self._seen_text = self._seen_text or bool(self._opening)
        self._forget_opening()
        return [Released()]

    # --- in a call -------------------------------------------------------------------------------

    def _begin(self, form: Format, *lexemes: Lexeme) -> list[Mark]:
        first = lexemes[0]
        self._body = form.body(self._schemas.get(first.name), self._wrapped)
        self._bare_object = form is self._markup.bare_object
        self._state = _State.CALL
        self._forget_opening()
        self._queue.extendleft(reversed(lexemes[1:]))
        return self._on_call(first)

    def _on_call(self, lexeme: Lexeme) -> list[Mark]:
        body = self._body
        assert body is not None
        outcome = body.feed(lexeme)
        taken = lexeme.text
        if body.leftover:
            taken = taken[: max(0, body.leftover[0].start - lexeme.start)]
        if self._bare_object:
            self._lines.feed(taken)
        held: list[Mark] = [Held(taken, lexeme.start)] if taken else []
        return held + self._call_marks(body, outcome)

    def _call_marks(self, body: Body, outcome: Outcome) -> list[Mark]:
        marks, body.marks = body.marks, []
        if outcome is Outcome.OPEN:
            return marks
        self._queue.extendleft(reversed(body.leftover))
        self._reset()
        if outcome is Outcome.NOT_A_CALL:
            self._seen_text = True
            return [*marks, Released()]
        if outcome is Outcome.BROKEN:
            return marks
        self._lines.after_call()
        if outcome is Outcome.DONE_INSIDE:
            self._state, self._wrapped = _State.OPENING, True
        return [*marks, Done()]

    # --- the end ---------------------------------------------------------------------------------

    def _close(self) -> list[Mark] | None:
        """The queue is empty and nothing follows. Called until it says that it is done."""
        if self._finishing == "length":
            self._closed = True
            return [Cut()] if self._marker_cut or self._state in (_State.OPENING, _State.CALL) else []
        if self._state is _State.CALL:
            assert self._body is not None
            return self._call_marks(self._body, self._body.finish())
        if self._state is _State.OPENING:
            self._reset()
            return [Released()]
        self._closed = True
        return self._reasoning.calls() if self._state is _State.REASONING else []


def _lexer(markup: Markup, schemas: Schemas, think: tuple[str, str] | None) -> Lexer:
    """Parameter names may be as long as the longest that a tool declares."""
    fixed = dict(markup.fixed)
    if think is not None:
        fixed |= {think[0]: Kind.THINK_OPEN, think[1]: Kind.THINK_CLOSE}
    longest = PARAMETER_NAME_CHARS
    for schema in schemas.values():
        properties = (schema or {}).get("properties")
        if isinstance(properties, Mapping):
            longest = max([longest, *map(len, properties)])
    return Lexer(fixed, markup.named, longest)
