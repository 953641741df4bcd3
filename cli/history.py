"""`history`: what this machine has done, by day and model."""

from __future__ import annotations

import json
import time

from cli.setup import paths
from provider.errors import UsageError
from provider.status.history import read_history, sum_by_day

_DAY_SECONDS = 86400


def show_history(*, days: int, as_json: bool) -> None:
    """Print the sums of the last days, newest first."""
    if days < 1:
        raise UsageError("--days: must be 1 or more")
    since_ms = int((time.time() - days * _DAY_SECONDS) * 1000)
    sums = sum_by_day(read_history(paths().state, since_ms=since_ms), None)
    newest_first = sorted(sums.items(), reverse=True)
    if as_json:
        rows = [{"day": day, "model": model, **total.document()} for (day, model), total in newest_first]
        print(json.dumps({"days": rows}, indent=2, ensure_ascii=False))
        return
    for (day, model), total in newest_first:
        others = total.jobs - total.completed
        print(
            f"{day}  {total.completed:>7} done {others:>5} not {total.prompt_tokens:>11} tokens in"
            f" {total.completion_tokens:>11} out {total.busy_s:>9.0f} s  {model}"
        )
    if not sums:
        print(f"no jobs in the last {days} days" if days > 1 else "no jobs in the last day")
