"""Who gets the next slot."""

from __future__ import annotations

from provider.engine.waiting import TOKENS_PER_SECOND_WAITED, WaitingLine


def line(seconds: float = 10.0, length: int = 8) -> WaitingLine[str]:
    return WaitingLine(seconds=seconds, length=length)


def order(waiting: WaitingLine[str], now: float) -> list[str]:
    return [job for _, job in waiting.in_order(now)]


def test_shortest_first_then_first_come() -> None:
    waiting = line()
    for serial, (name, cost) in enumerate([("long", 3000), ("short", 10), ("short too", 10)]):
        waiting.add(serial, name, cost=cost, since=0.0)
    assert order(waiting, 1.0) == ["short", "short too", "long"]


def test_a_long_one_that_waited_goes_before_a_newcomer() -> None:
    waiting = line()
    waiting.add(1, "long", cost=2000, since=0.0)
    waiting.add(2, "new", cost=10, since=2000 / TOKENS_PER_SECOND_WAITED)
    assert order(waiting, 5.0) == ["long", "new"]


def test_deadlines_and_removal() -> None:
    waiting = line(seconds=10.0)
    assert waiting.next_deadline() is None
    waiting.add(1, "a", cost=1, since=0.0)
    waiting.add(2, "b", cost=1, since=4.0)
    assert waiting.next_deadline() == 10.0
    assert waiting.pop_expired(9.9) == []
    assert waiting.pop_expired(10.0) == ["a"]
    assert waiting.remove(2) == "b"
    assert waiting.remove(2) is None
    assert len(waiting) == 0


def test_full_and_select() -> None:
    waiting = line(length=2)
    waiting.add(1, "a", cost=1, since=0.0)
    assert not waiting.full
    waiting.add(2, "b", cost=1, since=0.0)
    assert waiting.full
    assert waiting.select(lambda job: job == "a") == ["a"]
    assert order(waiting, 0.0) == ["b"]
