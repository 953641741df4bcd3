"""The benchmark of the proof runs, and what it measures is far from the bound of docs/receipts.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_proof_costs_less_than_one_percent_of_a_token_at_100_tokens_per_second() -> None:
    command = [sys.executable, "scripts/bench_receipts.py", "--json", "--tokens", "300"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=250)
    figures = json.loads(run.stdout)
    assert figures["proof_percent_at_100_tokens_per_s"] < 1
    assert {name for name in figures if name.endswith(("_us", "_per_token"))} == {
        "chain_us_per_token",
        "receipt_make_us",
        "receipt_check_us",
        "receipt_verify_us",
        "answer_check_us_per_token",
        "job_chunk_encode_us",
        "job_chunk_decode_us",
        "proof_us_per_token",
        "engine_event_to_sse_us_per_token",
    }
