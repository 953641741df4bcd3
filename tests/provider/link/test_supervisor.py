"""The reconnect loop on a virtual clock: delays, resets, stops, pokes. No socket here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import looptime
import pytest

from provider.link.backoff import Backoff, Verdict
from provider.link.board import LinkBoard, LinkStage
from provider.link.supervisor import LinkEnd, Supervisor

RETRY = LinkEnd(Verdict.RETRY, "close_1006", "")


class Attempts:
    """Plays the given ends, one for each dial, and notes when each dial began."""

    def __init__(self, ends: list[LinkEnd], *, lives: float = 0.0) -> None:
        self.ends = ends
        self.times: list[float] = []
        self._lives = lives
        self.exhausted = asyncio.Event()

    async def __call__(self) -> LinkEnd:
        self.times.append(asyncio.get_running_loop().time())
        if self._lives:
            await asyncio.sleep(self._lives)
        if not self.ends:
            self.exhausted.set()
            await asyncio.Event().wait()
        return self.ends.pop(0)

    @property
    def gaps(self) -> list[float]:
        return [round(b - a, 3) for a, b in zip(self.times, self.times[1:], strict=False)]


async def run_until_exhausted(attempts: Attempts) -> tuple[Supervisor, LinkBoard]:
    loop = asyncio.get_running_loop()
    board = LinkBoard(gateway="ws://g", clock=loop.time)
    supervisor = Supervisor(attempts, backoff=Backoff(lambda: 0.0), board=board)
    task = asyncio.create_task(supervisor.run())
    await attempts.exhausted.wait()
    supervisor.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return supervisor, board


def on_virtual_clock(test: Callable[[], Awaitable[None]]) -> None:
    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


def test_delays_grow_and_stay_at_a_minute() -> None:
    async def test() -> None:
        attempts = Attempts([RETRY] * 8)
        await run_until_exhausted(attempts)
        assert attempts.gaps == [1, 2, 4, 8, 16, 30, 30, 30]

    on_virtual_clock(test)


def test_a_gateway_gone_for_a_minute_is_found_again() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        back_at = loop.time() + 60
        dials = []
        found = asyncio.Event()

        async def dial() -> LinkEnd:
            dials.append(loop.time())
            if loop.time() < back_at:
                return RETRY
            found.set()
            await asyncio.Event().wait()
            return RETRY

        supervisor = Supervisor(
            dial, backoff=Backoff(lambda: 0.0), board=LinkBoard(gateway="ws://g", clock=loop.time)
        )
        task = asyncio.create_task(supervisor.run())
        await found.wait()
        assert loop.time() - back_at <= 31
        assert len(dials) <= 8
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    on_virtual_clock(test)


def test_accept_and_close_is_not_hammered_and_a_life_resets() -> None:
    async def test() -> None:
        short = LinkEnd(Verdict.RETRY, "close_1011", "", lived_ms=5_000)
        long = LinkEnd(Verdict.RETRY, "close_1001", "", lived_ms=30_000)
        attempts = Attempts([short] * 6 + [long, short])
        await run_until_exhausted(attempts)
        assert attempts.gaps == [1, 2, 4, 8, 16, 30, 1, 2]

    on_virtual_clock(test)


def test_long_waits_and_what_the_gateway_asks_for() -> None:
    async def test() -> None:
        wait = LinkEnd(Verdict.WAIT, "close_4429", "")
        asked = LinkEnd(Verdict.RETRY, "refused_too_many", "", at_least_ms=120_000)
        attempts = Attempts([wait, asked])
        await run_until_exhausted(attempts)
        assert attempts.gaps == [60, 120]

    on_virtual_clock(test)


def test_a_stop_returns_its_reason() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        stop = LinkEnd(Verdict.STOP, "close_4003", "token refused")
        board = LinkBoard(gateway="ws://g", clock=loop.time)
        supervisor = Supervisor(Attempts([stop]), backoff=Backoff(lambda: 0.0), board=board)
        assert await supervisor.run() == stop
        assert board.stage is LinkStage.STOPPED
        assert board.document()["last_error"] == "close_4003: token refused"

    on_virtual_clock(test)


def test_a_poke_ends_the_wait_and_close_ends_the_loop() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        attempts = Attempts([RETRY] * 3)
        board = LinkBoard(gateway="ws://g", clock=loop.time)
        supervisor = Supervisor(attempts, backoff=Backoff(lambda: 0.0), board=board)
        task = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0.5)
        assert board.document()["reconnect_in_s"] == 0.5
        supervisor.poke()
        await asyncio.sleep(0.1)
        assert attempts.gaps == [0.5]
        supervisor.close()
        assert await task is None

    on_virtual_clock(test)


@pytest.mark.parametrize("field", ["routable", "reasons", "session_id"])
def test_a_lost_link_claims_nothing(field: str) -> None:
    board = LinkBoard(gateway="ws://g", clock=lambda: 0.0)
    board.stage = LinkStage.REGISTERED
    board.routable, board.reasons, board.session_id = True, ("draining",), "s"
    board.lost("close_1006")
    assert not board.document()[field]


def test_an_end_by_a_newer_session_is_told_from_a_refusal() -> None:
    assert LinkEnd(Verdict.STOP, "close_4009", "a newer session of this identity").replaced
    assert not LinkEnd(Verdict.STOP, "close_4003", "token refused").replaced
