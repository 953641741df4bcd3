"""Reading takes time in proportion to the output. Measured, so slow and tolerant: 2 is right, 4 is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_toolcalls.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twice_the_output_takes_about_twice_the_time() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", "--runs", "3"],
        check=True,
        capture_output=True,
        text=True,
    )
    scenarios = json.loads(done.stdout)["scenarios"]
    assert len(scenarios) >= 20
    assert {name: row["ratio"] for name, row in scenarios.items() if row["ratio"] >= 3} == {}
