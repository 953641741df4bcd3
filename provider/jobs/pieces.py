"""What a job has to say next, before it becomes a chunk with a number and a link of the chain.

A `Piece` is one delta in the making. Neighbours of one kind may be joined (`join`) as long as they are
pieces; once sealed into a chunk they never change. No delta holds more than 64 KiB of text, joined arguments
no more than 2 KiB, and text and tool calls never share one (docs/protocol.md, docs/contract.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from gateway_protocol.limits import ARGUMENTS_PIECE_BYTES, DELTA_TEXT_BYTES
from gateway_protocol.messages import Delta, FunctionDelta, ToolCallDelta


class PieceKind(IntEnum):
    """`ROLE` opens an answer, `CALL` opens a call; these two are never joined with a neighbour."""

    ROLE = 0
    TEXT = 1
    REASONING = 2
    CALL = 3
    ARGUMENTS = 4


@dataclass(slots=True)
class Piece:
    """`text`: content, reasoning, a piece of arguments, or the name of the opened call.

    `index`, `call_id`: of `CALL` and `ARGUMENTS`. `logprobs`: OpenAI's entries for the visible tokens whose
    first delivered character is in `text`, `None` where there are none. A piece that has them is short and
    stays alone: twenty alternatives to each token soon fill a frame.
    """

    kind: PieceKind
    text: str = ""
    index: int = 0
    call_id: str = ""
    logprobs: list[dict[str, Any]] | None = None

    @property
    def size(self) -> int:
        """Bytes it may take in memory and on the wire, estimated from above without encoding it."""
        text = self.text
        size = OVERHEAD_BYTES + (len(text) if text.isascii() else 4 * len(text))
        if self.logprobs is not None:
            size += LOGPROB_BYTES * sum(1 + len(entry["top_logprobs"]) for entry in self.logprobs)
        return size


OVERHEAD_BYTES = 256
LOGPROB_BYTES = 160
_JOINABLE = frozenset({PieceKind.TEXT, PieceKind.REASONING, PieceKind.ARGUMENTS})


def can_join(left: Piece, right: Piece) -> bool:
    """Whether `right`, which follows `left`, may share its delta."""
    return (
        left.kind is right.kind
        and left.index == right.index
        and left.kind in _JOINABLE
        and left.logprobs is None
        and right.logprobs is None
        and 4 * (len(left.text) + len(right.text)) <= _joined_bytes(left.kind)
    )


def _joined_bytes(kind: PieceKind) -> int:
    # A buyer sees that a large argument is under way: its pieces stay small however far the link is behind.
    return ARGUMENTS_PIECE_BYTES if kind is PieceKind.ARGUMENTS else DELTA_TEXT_BYTES


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """The same answer in as few pieces as the limits allow; the given pieces stay as they are."""
    joined: list[Piece] = []
    run: list[Piece] = []
    run_chars = 0
    for piece in pieces:
        fits = 4 * (run_chars + len(piece.text)) <= _joined_bytes(piece.kind)
        if run and fits and can_join(run[-1], piece):
            run.append(piece)
            run_chars += len(piece.text)
            continue
        if run:
            joined.append(_fold(run))
        run, run_chars = [piece], len(piece.text)
    if run:
        joined.append(_fold(run))
    return joined


def _fold(run: list[Piece]) -> Piece:
    if len(run) == 1:
        return run[0]
    first = run[0]
    return Piece(first.kind, "".join([piece.text for piece in run]), first.index, first.call_id)


def split(piece: Piece) -> Iterator[Piece]:
    """The piece cut between code points so that no part is over 64 KiB."""
    text = piece.text
    if len(text) * 4 <= DELTA_TEXT_BYTES or len(text.encode()) <= DELTA_TEXT_BYTES:
        yield piece
        return
    chars = DELTA_TEXT_BYTES // 4
    for start in range(0, len(text), chars):
        yield Piece(piece.kind, text[start : start + chars], piece.index, piece.call_id)


def delta_of(piece: Piece) -> Delta:
    """The OpenAI choice delta of a piece."""
    if piece.kind is PieceKind.TEXT:
        return Delta(content=piece.text)
    if piece.kind is PieceKind.REASONING:
        return Delta(reasoning_content=piece.text)
    if piece.kind is PieceKind.ROLE:
        return Delta(role="assistant", content="")
    if piece.kind is PieceKind.CALL:
        opened = FunctionDelta(name=piece.text, arguments="")
        return Delta(
            tool_calls=(ToolCallDelta(index=piece.index, id=piece.call_id, type="function", function=opened),)
        )
    return Delta(tool_calls=(ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.text)),))
