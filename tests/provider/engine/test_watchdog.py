"""Each deadline of the watchdog, on a clock of numbers."""

from __future__ import annotations

from provider.engine.spec import Deadlines
from provider.engine.watchdog import Watchdog

DEADLINES = Deadlines(
    start=8, load=20, load_per_gib=4, step=10, first_token=12, first_token_per_prompt_token=0.01
)


class Clocked:
    """A watchdog ticked each half second."""

    def __init__(self) -> None:
        self.watchdog = Watchdog(DEADLINES)
        self.now = 1000.0
        self.watchdog.tick(self.now)
        self.watchdog.spawned()

    def after(self, seconds: float, *, beating: bool = False) -> str | None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.watchdog.tick(self.now)
            if beating:
                self.watchdog.beat()
        return self.watchdog.overdue()


def test_start() -> None:
    clocked = Clocked()
    assert clocked.after(8) is None
    assert clocked.after(1) == "start_timeout"


def test_step() -> None:
    clocked = Clocked()
    clocked.watchdog.hello()
    assert clocked.after(10) is None
    clocked.watchdog.beat()
    assert clocked.after(10) is None
    assert clocked.after(1) == "step_timeout"


def test_load_by_size_in_place_of_step() -> None:
    clocked = Clocked()
    clocked.watchdog.hello()
    clocked.watchdog.loading("big", 5 << 30)
    assert clocked.after(40) is None
    assert clocked.after(1) == "load_timeout"
    clocked.watchdog.loaded("big")
    assert clocked.after(10) is None
    assert clocked.after(1) == "step_timeout"


def test_first_token_by_prompt_length_and_those_before_it() -> None:
    clocked = Clocked()
    clocked.watchdog.hello()
    clocked.watchdog.admitted(1, 1000)
    clocked.watchdog.admitted(2, 200)
    clocked.watchdog.first_token_done(1)
    # 12 s, and 10 ms for each of 1,200 tokens that had to be computed.
    assert clocked.after(24, beating=True) is None
    assert clocked.after(1, beating=True) == "first_token_timeout"
    clocked.watchdog.first_token_done(2)
    assert clocked.watchdog.overdue() is None


def test_time_in_which_the_daemon_itself_slept_is_not_the_child_s_fault() -> None:
    clocked = Clocked()
    clocked.watchdog.hello()
    assert clocked.after(2) is None
    clocked.now += 3600
    clocked.watchdog.tick(clocked.now)
    assert clocked.watchdog.overdue() is None
    assert clocked.after(5) is None
    assert clocked.after(6) == "step_timeout"


def test_a_new_child_starts_clean() -> None:
    clocked = Clocked()
    clocked.watchdog.hello()
    clocked.watchdog.admitted(1, 0)
    clocked.watchdog.loading("m", 0)
    clocked.watchdog.spawned()
    assert clocked.after(8) is None
    clocked.watchdog.hello()
    assert clocked.after(14, beating=True) is None
