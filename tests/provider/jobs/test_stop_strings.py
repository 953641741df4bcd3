"""Stop strings: the same answer at every cut, nothing lost, nothing of the stop string shown."""

import time

from hypothesis import given
from hypothesis import strategies as st

from provider.jobs.stop_strings import StopStrings

LETTERS = st.text("ab<", max_size=40)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=5), min_size=1, max_size=4)


def by_character(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule in words: the text up to the first string to be complete (the longest, if two are)."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - len(max(found, key=len))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(1, 7), min_size=1))
def test_equal_to_the_rule_at_every_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopStrings(stops)
    out = ""
    position = 0
    turn = 0
    while position < len(text) and not matcher.stopped:
        size = cuts[turn % len(cuts)]
        out += matcher.feed(text[position : position + size])
        position += size
        turn += 1
    if not matcher.stopped:
        out += matcher.flush()
    assert (out, matcher.stopped) == by_character(text, stops)


def test_holds_back_only_what_may_become_a_stop_string() -> None:
    matcher = StopStrings(["<END>"])
    assert matcher.feed("hello <E") == "hello "
    assert matcher.feed("N") == ""
    assert matcher.feed("!") == "<EN!"
    assert matcher.feed("<END> gone") == ""
    assert matcher.stopped


def test_linear_on_hostile_strings() -> None:
    def seconds(size: int) -> float:
        matcher = StopStrings(["a" * size + "b"])
        started = time.process_time()
        for _ in range(size // 10):
            matcher.feed("aaaaaaaaaa")
        return time.process_time() - started

    seconds(10_000)
    # Quadratic work would take 100 times as long; ten times the text may take 40 times on a busy machine.
    assert seconds(100_000) < 40 * max(seconds(10_000), 0.002)
