"""Pieces: joined where allowed, split at 64 KiB between code points, never mixed."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway_protocol.limits import DELTA_TEXT_BYTES
from provider.jobs.pieces import Piece, PieceKind, can_join, delta_of, join, split

PIECES = st.lists(
    st.builds(
        Piece,
        st.sampled_from([PieceKind.TEXT, PieceKind.REASONING, PieceKind.ARGUMENTS, PieceKind.CALL]),
        st.text(min_size=1, max_size=8),
        st.integers(0, 1),
    )
)


@given(PIECES)
def test_joining_keeps_order_and_text(pieces: list[Piece]) -> None:
    joined = join(pieces)
    flat = [(p.kind, p.index, c) for p in pieces for c in p.text]
    assert [(p.kind, p.index, c) for p in joined for c in p.text] == flat
    assert not any(can_join(left, right) for left, right in itertools.pairwise(joined))


def test_pieces_with_logprobs_stay_alone() -> None:
    pieces = [Piece(PieceKind.TEXT, c, logprobs=[{"token": c, "top_logprobs": []}]) for c in "abc"]
    assert join(pieces) == pieces


def test_no_delta_is_over_its_cap() -> None:
    for char in ("a", "é", "漢", "🙂"):
        text = char * DELTA_TEXT_BYTES
        parts = list(split(Piece(PieceKind.TEXT, text)))
        assert "".join(part.text for part in parts) == text
        assert all(len(part.text.encode()) <= DELTA_TEXT_BYTES for part in parts)
    exact = Piece(PieceKind.TEXT, "a" * DELTA_TEXT_BYTES)
    assert list(split(exact)) == [exact]


def test_joining_stops_at_the_cap() -> None:
    joined = join([Piece(PieceKind.TEXT, "漢" * 5_000) for _ in range(20)])
    assert len(joined) > 1
    assert all(len(piece.text.encode()) <= DELTA_TEXT_BYTES for piece in joined)


def test_deltas() -> None:
    def wire(piece: Piece) -> dict[str, object]:
        return delta_of(piece).model_dump(exclude_none=True)

    assert wire(Piece(PieceKind.ROLE)) == {"role": "assistant", "content": ""}
    assert wire(Piece(PieceKind.TEXT, "hi")) == {"content": "hi"}
    assert wire(Piece(PieceKind.REASONING, "hm")) == {"reasoning_content": "hm"}
    opened = wire(Piece(PieceKind.CALL, "f", 2, "call_1"))
    assert opened == {
        "tool_calls": (
            {"index": 2, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
        )
    }
    piece = wire(Piece(PieceKind.ARGUMENTS, "{", 2))
    assert piece == {"tool_calls": ({"index": 2, "function": {"arguments": "{"}},)}
