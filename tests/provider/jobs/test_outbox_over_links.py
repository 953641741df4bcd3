"""The outbox behind a link that is cut, repeats and reorders: the machine that tests the sessions alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway_protocol.codec import encode
from gateway_protocol.messages import JobChunk
from gateway_protocol.receipts import CHAIN_START, chain_link
from gateway_protocol.session.job_frames import JobFrame
from provider.jobs.outbox import Outbox
from provider.jobs.pieces import Piece, PieceKind, delta_of
from tests.gateway_protocol.link_machine import Attempt, LinkMachine, accepted


class OutboxStore:
    """Frames are numbered and chained when they are pulled; a small bound makes waiting pieces join."""

    def __init__(self, made: Callable[[JobFrame], bool]) -> None:
        self._made = made
        self._outbox = Outbox(job_bytes=2_000, total_bytes=4_000)
        self._chains: dict[Attempt, bytes] = {}

    def _frame(self, frame: JobFrame) -> str:
        assert self._made(frame)
        return encode(frame)

    def open(self, attempt: Attempt) -> None:
        self._chains[attempt] = CHAIN_START
        self._outbox.open(*attempt, lambda seq, piece: self._sealed(attempt, seq, piece))

    def _sealed(self, attempt: Attempt, seq: int, piece: Piece) -> str:
        delta = delta_of(piece)
        link = self._chains[attempt] = chain_link(self._chains[attempt], seq, delta)
        return self._frame(
            JobChunk(job_id=attempt[0], attempt=attempt[1], seq=seq, delta=delta, chain=link.hex())
        )

    def accept(self, attempt: Attempt) -> None:
        self._outbox.accept(attempt[0], self._frame(accepted(attempt)))

    def say(self, attempt: Attempt, text: str) -> None:
        self._outbox.append(attempt[0], [Piece(PieceKind.TEXT, text)])

    def end(self, attempt: Attempt, make: Callable[[int], JobFrame]) -> None:
        self._outbox.finish(attempt[0], lambda chunks: self._frame(make(chunks)))

    def linked(self) -> None:
        self._outbox.rewind()

    def resume(self, attempt: Attempt, from_seq: int) -> None:
        assert self._outbox.resume(*attempt, from_seq)

    def acknowledge(self, attempt: Attempt, seq: int) -> None:
        self._outbox.acknowledge(*attempt, seq)

    def drop(self, attempt: Attempt) -> None:
        self._outbox.drop(attempt[0])
        if not len(self._outbox):
            assert self._outbox.bytes == 0

    def next_frame(self) -> str | None:
        return self._outbox.next_frame()


class OutboxMachine(LinkMachine):
    make_store = OutboxStore


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_cuts_lose_and_double_nothing() -> None:
    thorough = settings(TestOutboxMachine.settings, max_examples=800, stateful_step_count=60)
    run_state_machine_as_test(OutboxMachine, settings=thorough)
