"""The benchmark's arithmetic, and a quick run that gives the document it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.answers import Answer, read_answer, steady_tokens_per_s, whole_tokens_per_s, worst_gap
from bench.figures import compared, ratio
from bench.targets import targets

ROOT = Path(__file__).parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "models" / "tiny-qwen3"


def answer(begin: float, count: int, step: float, *, sent: float = 0.0, tokens: int | None = None) -> Answer:
    times = tuple(begin + number * step for number in range(count))
    return Answer(sent, times, count if tokens is None else tokens)


def test_steady_speed_counts_only_while_all_decode() -> None:
    early, late = answer(1, 11, 1), answer(6, 11, 1)
    # Both run from 6 to 11: five tokens each in five seconds.
    assert steady_tokens_per_s([early, late]) == pytest.approx(2)
    assert steady_tokens_per_s([answer(1, 3, 1), answer(9, 3, 1)]) == 0
    # Events of two tokens each.
    assert steady_tokens_per_s([answer(0, 11, 1, tokens=22)]) == pytest.approx(2)
    # A first token by itself, then five at a time.
    assert steady_tokens_per_s([Answer(0, (0, 1, 2), 11, sizes=(1, 5, 5))]) == pytest.approx(5)
    assert whole_tokens_per_s([early, late]) == pytest.approx(22 / 16)


def test_the_worst_gap_is_one_that_touches_the_time_asked_about() -> None:
    stream = Answer(0, (0, 9, 10, 11, 14, 15, 16), 7)
    assert worst_gap([stream], 11.5, 13) == 3
    assert worst_gap([stream], 14.5, 16) == 1


def test_events_are_read_whole_however_they_were_cut() -> None:
    said = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":9}}\n\ndata: [DONE]\n\n'
    raw = said + said + usage
    for cut in range(len(raw)):
        read = read_answer(0, [(1, raw[:cut]), (2, raw[cut:])])
        assert (read.text, read.tokens, read.prompt_tokens, read.error) == ("hihi", 2, 9, None)
    assert read_answer(0, [(1, b'HTTP/1.1 404\r\n\r\n{"error": 1}')]).error is not None


def test_ratios_are_of_neighbours_and_of_bests() -> None:
    assert ratio([9, 18, 30], [10, 20, 10]) == {"paired": 0.9, "best": 1.5}
    assert ratio([2.0], [1.0], more_is_better=False) == {"paired": 2, "best": 2}
    document = compared([{"bare": {"tokens_per_s": 10}, "product": {"tokens_per_s": 9}}])
    assert document["product/bare"]["tokens_per_s"] == {"paired": 0.9, "best": 0.9}


def test_a_target_is_met_by_what_was_measured_alone() -> None:
    stack = {"full_speed": {"tokens_per_s_of_one_core": 19_000}}
    (entry,) = targets({"models": {}, "stack": stack})
    assert not entry["met"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_gives_one_document() -> None:
    command = ["scripts/bench", "--quick", "--json", "--model", f"tiny-qwen3={FIXTURE}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    document = json.loads(run.stdout)
    assert set(document) == {"machine", "quick", "models", "stack", "targets", "seconds"}
    parts = document["models"]["tiny-qwen3"]
    assert set(parts) == {"start", "chat", "seeded", "tools", "turns", "long_prompt"}
    assert set(parts["chat"]) == {"1", "4", "8", "16"}
    for figures in (*parts["chat"].values(), parts["seeded"], parts["tools"], parts["turns"], parts["start"]):
        assert {"bare", "mlx_lm.server", "product", "product/bare", "product/mlx_lm.server"} <= set(figures)
    assert parts["turns"]["product"]["second_cached_tokens"]["min"] > 1900
    assert parts["long_prompt"]["product"]["worst_gap_s"]["min"] > 0
    assert document["stack"]["full_speed"]["cpu_us_per_token"]["min"] > 0
    assert {"model", "what", "bound", "value", "best", "met", "met_at_best"} == set(document["targets"][0])


def test_an_unknown_part_is_a_usage_error() -> None:
    command = [sys.executable, "-m", "bench", "--only", "speed"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 2
    assert "no part speed" in run.stderr
