"""From engine tokens to the pieces of an answer: interpret, match stop strings, join tokens, count. Pure.

    tokens ─▶ OutputInterpreter ─▶ events ─▶ stop strings (visible text only) ─▶ pieces ─▶ outbox (chunks)

One token makes one step, and the pieces of a step that can share a delta do. Neighbours are joined over steps
only where the caller says so: the cut of an answer into chunks is then the same in every run at ordinary
speed, and at high load fewer, larger chunks carry it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from gateway_protocol.errors import ApiError
from gateway_protocol.limits import DELTA_TEXT_BYTES
from gateway_protocol.messages import FinishReason
from provider.engine.base import Token
from provider.jobs.argument_check import ArgumentCheck
from provider.jobs.logprobs import TokenJoin
from provider.jobs.pieces import Piece, PieceKind, join, split
from provider.jobs.stop_strings import StopStrings
from provider.toolcalls.events import (
    Event,
    Failed,
    Finished,
    ReasoningDelta,
    StopGeneration,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallStart,
)

# With logprobs a text goes out in parts of so many characters, so of about as many tokens at most.
LOGPROB_CHARS = 64


class Interpreter(Protocol):
    """What this room needs of `provider.toolcalls.OutputInterpreter`."""

    @property
    def in_reasoning(self) -> bool: ...

    def feed(self, text: str, token_id: int | None = None) -> list[Event]: ...

    def feed_plain(self, text: str) -> TextDelta | ReasoningDelta | None: ...

    def finish(self, cause: Literal["stop", "length"]) -> list[Event]: ...


class JobPipeline:
    """One answer. `feed` tokens until `done`, or call `finish` at the engine's own end.

    After `feed`, look at `done`: the answer is decided, exactly one of `finish_reason` and `error` is
    set, nothing may be fed any more. Look at `stop_wanted`, too: the engine is to stop, but what it emits all
    the same is still to be fed (it may break a promise); it isn't counted.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        stop: Sequence[str] = (),
        include_reasoning: bool = False,
        logprobs: bool = False,
        tools: Mapping[str, Mapping[str, Any] | None] | None = None,
    ) -> None:
        self._interpreter = interpreter
        self._check = ArgumentCheck(tools) if tools else None
        self._stop = StopStrings(stop) if stop else None
        self._include_reasoning = include_reasoning
        self._tokens = TokenJoin() if logprobs else None
        self._held: deque[tuple[int, int]] = deque()
        self._pieces: list[Piece] = []
        self._opened = False
        self.done = False
        self.stop_wanted = False
        self.finish_reason: FinishReason | None = None
        self.error: ApiError | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    @property
    def misfits(self) -> Sequence[str]:
        """The functions that were called with arguments that don't fit their schema."""
        return () if self._check is None else self._check.misfits

    def feed(self, tokens: Sequence[Token], *, joined: bool = False) -> list[Piece]:
        """The pieces these tokens add; `joined`: in as few as can be. Tokens after the end aren't counted."""
        self._open()
        if joined and self._fed_at_once(tokens):
            return self._taken(joined=True)
        interpreter = self._interpreter
        for token in tokens:
            if self.done:
                break
            counted = not self.stop_wanted
            self.completion_tokens += counted
            if self._tokens is not None:
                self._tokens.generated(token)
            events = interpreter.feed(token.text, token.token_id)
            if interpreter.in_reasoning:
                self.reasoning_tokens += counted
            if events:
                before = len(self._pieces)
                self._take(events)
                if len(self._pieces) - before > 1:
                    self._pieces[before:] = join(self._pieces[before:])
        return self._taken(joined=joined)

    def _fed_at_once(self, tokens: Sequence[Token]) -> bool:
        """Text that is only text needs no look at each token, unless its tokens are asked for one by one."""
        if self.done or self.stop_wanted or self._stop is not None or self._tokens is not None:
            return False
        event = self._interpreter.feed_plain("".join([token.text for token in tokens]))
        if event is None:
            return False
        self.completion_tokens += len(tokens)
        if isinstance(event, ReasoningDelta):
            self.reasoning_tokens += len(tokens)
        self._take([event])
        return True

    def finish(self, cause: Literal["stop", "length"]) -> list[Piece]:
        """The engine has ended by itself: the last pieces. Then `finish_reason` or `error` is set."""
        self._open()
        if not self.done:
            self._take(self._interpreter.finish(cause))
            self.done = True
        return self._taken(joined=False)

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._pieces.append(Piece(PieceKind.ROLE))

    def _taken(self, *, joined: bool) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        if joined and len(pieces) > 1:
            pieces = join(pieces)
        if any(len(piece.text) * 4 > DELTA_TEXT_BYTES for piece in pieces):
            pieces = [part for piece in pieces for part in split(piece)]
        return pieces

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if self.done:
                return
            if self._check is not None:
                self._check.see(event)
            match event:
                case TextDelta():
                    self._text(event)
                case ReasoningDelta():
                    if self._include_reasoning:
                        self._pieces.append(Piece(PieceKind.REASONING, event.text))
                case ToolCallStart():
                    # No text may follow a tool delta, so what may have become a stop string goes out now.
                    self._flush()
                    self._pieces.append(Piece(PieceKind.CALL, event.name, event.index, event.call_id))
                case ToolCallArgumentsDelta():
                    self._pieces.append(Piece(PieceKind.ARGUMENTS, event.text, event.index))
                case StopGeneration():
                    self.stop_wanted = True
                    if event.final:
                        self._take(self._interpreter.finish("stop"))
                case Finished():
                    self._flush()
                    self.finish_reason = event.finish_reason
                    self.done = True
                case Failed():
                    self._flush()
                    self.error = ApiError(event.code, event.message, inference_ran=True)
                    self.done = True

    def _text(self, event: TextDelta) -> None:
        if self._tokens is not None:
            self._held.append((event.start, len(event.text)))
        if self._stop is None:
            self._emit(event.text)
            return
        self._emit(self._stop.feed(event.text))
        if self._stop.stopped:
            self.finish_reason = FinishReason.STOP
            self.done = True

    def _flush(self) -> None:
        if self._stop is not None:
            self._emit(self._stop.flush())

    def _emit(self, text: str) -> None:
        if self._tokens is None:
            if text:
                self._pieces.append(Piece(PieceKind.TEXT, text))
            return
        for start in range(0, len(text), LOGPROB_CHARS):
            part = text[start : start + LOGPROB_CHARS]
            logprobs = self._logprobs(self._tokens, len(part))
            self._pieces.append(Piece(PieceKind.TEXT, part, logprobs=logprobs))

    def _logprobs(self, tokens: TokenJoin, length: int) -> list[dict[str, object]] | None:
        """The entries of the next `length` characters of visible text, which may be several stretches."""
        entries: list[dict[str, object]] = []
        while length:
            start, held = self._held.popleft()
            taken = min(held, length)
            entries += tokens.delivered(start, taken)
            if taken < held:
                self._held.appendleft((start + taken, held - taken))
            length -= taken
        return entries or None
