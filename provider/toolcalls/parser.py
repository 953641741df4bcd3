"""The one incremental parser of the text families, run by the family's row in `families.MARKUP`.

`push` output, then `step` until it has nothing more: each step reads one lexeme and gives its marks, so that
whoever reads them can say in between that everything is plain text from here on (`go_plain`).

    TEXT ──opener──▶ OPENING ──a format begins──▶ CALL ──complete──▶ TEXT (OPENING inside a wrapper)
      ▲ ▲                └──prose after all──▶ TEXT  └──broken, no call──▶ TEXT
      │ └──think closer── REASONING ◀──think opener── TEXT
      └── after go_plain() openers are text; reasoning is told apart all the same
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from provider.toolcalls.families import Format, Markup, Schemas
from provider.toolcalls.formats.body import Body, Outcome
from provider.toolcalls.lexer import Kind, Lexeme
from provider.toolcalls.lines import LineTracker
from provider.toolcalls.marks import Cut, Done, ForgetSpace, Held, Mark, Reasoning, Released, Visible
from provider.toolcalls.opening import Opening, Verdict
from provider.toolcalls.policy import Cause
from provider.toolcalls.reasoning import ReasoningText
from provider.toolcalls.turn_end import TurnEnd


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
        self._lexer = markup.lexer(schemas, think)
        self._turn_end = TurnEnd()
        self._lines = LineTracker(markup.separators)
        self._queue: deque[Lexeme] = deque()
        self._opening = Opening(markup, wrapped=True)
        self._body: Body | None = None
        self._after_reasoning = False
        self._seen_text = False
        self._finishing: Cause | None = None
        self._marker_cut = self._closed = False
        self._end = math.inf  # where the output ends but for half a marker, which is then
        self._half: list[Lexeme] = []
        self.plain = plain
        self._reasoning = ReasoningText(self._drafts, schemas)
        self._state = _State.REASONING if think is not None and reasoning_open else _State.TEXT
        self._handlers: dict[_State, Callable[[Lexeme], list[Mark]]] = {
            _State.TEXT: self._on_text,
            _State.OPENING: self._on_opening,
            _State.CALL: self._on_call,
            _State.REASONING: self._on_reasoning,
        }

    def _drafts(self) -> CallParser | None:
        return None if self.plain else CallParser(self._markup, self._schemas)

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.REASONING

    @property
    def at_rest(self) -> bool:
        """Nothing is held: text without a marker's beginning or a line break passes, `skip` it."""
        if self._queue or self._turn_end.holding or self._lexer.holding or self._after_reasoning:
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
        self._queue.extend(self._turn_end.feed(self._lexer.feed(text)))

    def read(self, lexeme: Lexeme) -> None:
        self._queue.append(lexeme)

    def finish(self, cause: Cause) -> None:
        """The output is over; `step` gives the last marks."""
        self._finishing = cause
        half = self._lexer.holding
        self._marker_cut, self._end = self._markup.begins_call(half), self._lexer.offset - len(half)
        self._queue.extend(self._turn_end.feed(self._lexer.finish()))

    def go_plain(self) -> None:
        """Nothing that comes is a call any more. What was held of one has been dealt with."""
        self.plain = self._seen_text = True
        self._body = None
        if self._state is not _State.REASONING:
            self._state = _State.TEXT
        self._reasoning.drop_drafts()

    def step(self) -> list[Mark] | None:
        """Read one lexeme; `None`: nothing is left to read."""
        if self._queue:
            return self._handlers[self._state](self._queue.popleft())
        return self._close() if self._finishing and not self._closed else None

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
            wrapped = kind is Kind.CALL_OPEN
            if wrapped or (kind is Kind.FUNCTION_OPEN and self._markup.bare_function is not None):
                return self._open(lexeme, wrapped=wrapped)
        return self._visible(lexeme)

    def _plain_text(self, lexeme: Lexeme) -> list[Mark]:
        if self._after_reasoning:
            text = lexeme.text.lstrip("\r\n")
            if not text:
                return []
            lexeme = lexeme.rest(len(lexeme.text) - len(text))
        if self.plain or self._markup.bare_object is None:
            return self._visible(lexeme)
        at = self._lines.bare_object(lexeme.text)
        marks = self._said(lexeme.text[:at], lexeme.start) if at != 0 else []
        if at is not None:
            self._opening = Opening(self._markup, wrapped=False)
            marks += self._begin(self._markup.bare_object, lexeme.rest(at))
        return marks

    def _visible(self, lexeme: Lexeme) -> list[Mark]:
        self._lines.feed(lexeme.text)
        return self._said(lexeme.text, lexeme.start)

    def _said(self, text: str, start: int) -> list[Mark]:
        self._after_reasoning = False
        self._seen_text = self._seen_text or not text.isspace()
        return [Visible(text, start)]

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

    # --- calls -----------------------------------------------------------------------------------

    def _open(self, lexeme: Lexeme, *, wrapped: bool) -> list[Mark]:
        self._state = _State.OPENING
        self._after_reasoning = False
        self._opening = Opening(self._markup, wrapped=wrapped, first=lexeme)
        self._lines.feed(lexeme.text)
        return [Held(lexeme.text, lexeme.start)]

    def _on_opening(self, lexeme: Lexeme) -> list[Mark]:
        decision = self._opening.feed(lexeme)
        if decision.verdict is Verdict.UNDECIDED:
            self._lines.feed(lexeme.text)
            return [Held(lexeme.text, lexeme.start)]
        if decision.form is not None:
            return self._begin(decision.form, *decision.lexemes)
        # Prose that mentions an opener: the text goes on with this lexeme.
        self._queue.appendleft(lexeme)
        self._state = _State.TEXT
        self._seen_text = self._seen_text or bool(self._opening.held)
        return [Released()]

    def _begin(self, form: Format, *lexemes: Lexeme) -> list[Mark]:
        self._body = form.body(self._schemas.get(lexemes[0].name), self._opening.wrapped)
        self._state = _State.CALL
        self._after_reasoning = False
        self._queue.extendleft(reversed(lexemes[1:]))
        return self._on_call(lexemes[0])

    def _on_call(self, lexeme: Lexeme) -> list[Mark]:
        body = self._body
        assert body is not None
        if lexeme.start >= self._end:
            # Half a marker, with which the output broke off: it tells nothing of the call.
            self._half = [lexeme]
            return [Held(lexeme.text, lexeme.start)]
        outcome = body.feed(lexeme)
        taken = lexeme.text
        if body.leftover:
            taken = taken[: max(0, body.leftover[0].start - lexeme.start)]
        self._lines.feed(taken)
        marks = self._after(body, outcome)
        return [Held(taken, lexeme.start), *marks] if taken else marks

    def _after(self, body: Body, outcome: Outcome) -> list[Mark]:
        marks, body.marks = body.marks, []
        if outcome is Outcome.OPEN:
            return marks
        self._queue.extend(self._half if body.leftover else ())
        self._queue.extendleft(reversed(body.leftover))
        self._body = None
        self._state = _State.TEXT
        if outcome in (Outcome.NOT_A_CALL, Outcome.BROKEN):
            self._seen_text = True
            return [*marks, Released()] if outcome is Outcome.NOT_A_CALL else marks
        self._lines.after_call()
        if outcome is Outcome.DONE_INSIDE:
            self._state = _State.OPENING
            self._opening = Opening(self._markup, wrapped=True)
        return [*marks, Done()]

    # --- the end ---------------------------------------------------------------------------------

    def _close(self) -> list[Mark] | None:
        """Nothing follows. Called until nothing is open."""
        if self._finishing == "length":
            self._closed = True
            return [Cut()] if self._marker_cut or self._state in (_State.OPENING, _State.CALL) else []
        if self._state is _State.CALL:
            assert self._body is not None
            return self._after(self._body, self._body.finish())
        self._closed = self._state is not _State.OPENING
        if not self._closed:
            self._state = _State.TEXT
            return [Released()]
        return self._reasoning.calls() if self._state is _State.REASONING else []
