"""What the product is held to, and whether this run shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEAST_OF_BARE = 0.97
LEAST_SEEDED = 4.0
MOST_WARM = 0.05
LEAST_STACK = 20_000
MOST_CHUNKS = 1.0


def targets(document: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for each target that was measured: `value` is the paired ratio (or what is said), `best` the
    ratio of the best samples, `met` is of `value`, `met_at_best` of `best`."""
    entries = [entry for model, parts in document["models"].items() for entry in _of_model(model, parts)]
    if "stack" in document:
        least = document["stack"]["full_speed"]["tokens_per_s_of_one_core"]
        entries.append(
            _entry("", "stack alone, tokens/s of one core at 64 streams", LEAST_STACK, least, least)
        )
    return entries


def _of_model(model: str, parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for streams, figures in parts.get("chat", {}).items():
        for other, least in (("bare", LEAST_OF_BARE), ("mlx_lm.server", 1.0)):
            for figure, words in (
                ("tokens_per_s", ""),
                ("tokens_per_engine_cpu_s", ", by the engine's CPU time"),
            ):
                found = figures[f"product/{other}"].get(figure)
                if found:
                    what = f"chat at {streams}, product ÷ {other}{words}"
                    yield _entry(model, what, least, found["paired"], found["best"])
    if "seeded" in parts:
        found = parts["seeded"]["product/mlx_lm.server"]["whole_tokens_per_s"]
        what = "8 seeded requests, product ÷ mlx_lm.server"
        yield _entry(model, what, LEAST_SEEDED, found["paired"], found["best"])
    if "turns" in parts:
        for turn in ("second", "third"):
            found = parts["turns"]["product"][f"{turn}_to_cold"]
            what = f"{turn} turn's first token, warm ÷ cold"
            yield _entry(model, what, MOST_WARM, found["median"], found["best"], most=True)
    if "long_prompt" in parts:
        found = parts["long_prompt"]["product"]["worst_gap/chunk"]
        what = "worst gap under a long prompt, in chunks"
        yield _entry(model, what, MOST_CHUNKS, found["paired"], found["best"], most=True)


def _entry(
    model: str, what: str, bound: float, value: float, best: float, *, most: bool = False
) -> dict[str, Any]:
    met, met_at_best = (value <= bound, best <= bound) if most else (value >= bound, best >= bound)
    return {
        "model": model,
        "what": what,
        "bound": f"{'≤' if most else '≥'} {bound:g}",
        "value": value,
        "best": best,
        "met": met,
        "met_at_best": met_at_best,
    }
