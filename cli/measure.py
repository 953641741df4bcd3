"""`measure`: how fast this machine is, by the running daemon or, where none runs, by an engine of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from cli.control import ask
from cli.setup import load_config, paths
from provider.errors import ProviderError
from provider.system.lock import is_held

# Up to a minute until the engine is free, and one for the measuring.
ANSWER_SECONDS = 130.0


def measure(*, as_json: bool, config_file: Path | None) -> None:
    """Measure the first model, keep the figures for the next registration, print them."""
    running, _ = is_held(paths().lock_file)
    if running:
        found = ask("POST", "measure", seconds=ANSWER_SECONDS)
        if "error" in found:
            raise ProviderError(f"not measured: {found['error']}")
    else:
        from provider.app import run_measure

        found = asyncio.run(run_measure(load_config(config_file).settings, paths()))
    print(json.dumps(found, indent=2) if as_json else line(found))


def line(found: dict[str, Any]) -> str:
    """The figures in words."""
    decode, prefill = found["decode_tokens_per_s"], found["prefill_tokens_per_s"]
    return f"{found['model']}: {decode:.1f} tokens/s decode, {prefill:.1f} tokens/s prefill"
