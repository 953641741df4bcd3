"""The soak sees what it is there to see, and finds nothing in a short run on real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from soak.ends import End, read_end
from soak.growth import Rest, grown

ROOT = Path(__file__).parents[2]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
SAID = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
ERROR = b'data: {"error":{"code":"provider_error"}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("raw", "end"),
    [
        (STREAM + SAID + FINISH + DONE, End.FINISHED),
        (STREAM + SAID + ERROR + DONE, End.ERROR_EVENT),
        (b'HTTP/1.1 503 No\r\n\r\n{"error": {"code": "provider_overloaded"}}', End.REFUSED),
        (b'HTTP/1.1 200 OK\r\n\r\n{"choices":[{"finish_reason":"stop"}]}', End.FINISHED),
    ],
)
def test_one_end_is_well(raw: bytes, end: End) -> None:
    ending = read_end(raw, left=False)
    assert (ending.end, ending.fault) == (end, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        STREAM + SAID,
        STREAM + SAID + FINISH,
        STREAM + SAID + DONE,
        STREAM + FINISH + FINISH + DONE,
        STREAM + FINISH + ERROR + DONE,
        STREAM + FINISH + DONE + DONE,
        b"HTTP/1.1 500 Oh\r\n\r\nTraceback",
    ],
)
def test_no_end_and_two_ends_are_faults(raw: bytes) -> None:
    assert read_end(raw, left=False).fault is not None


def test_who_left_is_owed_no_end_but_never_gets_two() -> None:
    assert read_end(STREAM + SAID, left=True).fault is None
    assert read_end(STREAM + FINISH + ERROR, left=True).fault is not None


def test_nonsense_must_be_refused() -> None:
    assert read_end(STREAM + FINISH + DONE, left=False, may_succeed=False).fault is not None


def test_growth_is_of_one_process_from_its_first_rest() -> None:
    well = [Rest(1, 80, 12, 5, 19), Rest(1, 96, 14, 6, 19)]
    assert grown("daemon", well) == []
    assert grown("daemon", [Rest(9, 20, 4, 2, 3), *well]) == []
    for worse, figure in (
        (Rest(1, 140, 12, 5, 19), "rss_mib"),
        (Rest(1, 80, 40, 5, 19), "fds"),
        (Rest(1, 80, 12, 40, 19), "threads"),
        (Rest(1, 80, 12, 5, 30), "tasks"),
    ):
        (fault,) = grown("daemon", [well[0], worse])
        assert figure in fault


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_soak_finds_nothing() -> None:
    command = [sys.executable, "-m", "soak", "--minutes", "0.4", "--json", "--seed", "7"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    document = json.loads(run.stdout)
    assert document["faults"] == []
    assert run.returncode == 0
    assert {"gateway", "scripted", "mlx"} <= set(document["processes"])
    assert set(document["requests"]) == {"stream", "buffered", "tools", "leaves", "slow", "bad input"}
    assert sum(document["requests"].values()) == sum(document["ends"].values())
    assert document["troubles"]
