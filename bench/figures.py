"""From samples to figures: medians, ratios of pairs, bests. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def rounded(value: float) -> float:
    """To three significant figures, which is more than these measurements hold."""
    return float(f"{value:.3g}")


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """The samples themselves, their median and their extremes."""
    return {
        "median": rounded(median(samples)),
        "min": rounded(min(samples)),
        "max": rounded(max(samples)),
        "samples": [rounded(sample) for sample in samples],
    }


def ratio(mine: Sequence[float], theirs: Sequence[float], *, more_is_better: bool = True) -> dict[str, float]:
    """`mine` to `theirs`, sampled in turn.

    `paired`: the median of the ratios of neighbours, which had about the same machine to themselves. `best`:
    best to best, the ratio on a quiet machine if each of them had a quiet moment.
    """
    pairs = [mine[at] / theirs[at] for at in range(min(len(mine), len(theirs))) if theirs[at]]
    best = max if more_is_better else min
    if not pairs or not best(theirs):
        return {}
    return {"paired": rounded(median(pairs)), "best": rounded(best(mine) / best(theirs))}


def columns(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Rounds of {system: {figure: value}} as {system: {figure: [values in order]}}."""
    table: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for system, figures in one.items():
            for name, value in figures.items():
                table.setdefault(system, {}).setdefault(name, []).append(value)
    return table


def compared(
    rounds: Sequence[Mapping[str, Mapping[str, float]]], *, less_is_better: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Every figure of every system, and the product's ratio to each of the others."""
    table = columns(rounds)
    document: dict[str, Any] = {
        system: {name: spread(values) for name, values in figures.items()}
        for system, figures in table.items()
    }
    product = table.get("product", {})
    for other, figures in table.items():
        if other != "product":
            document[f"product/{other}"] = {
                name: ratio(product[name], figures[name], more_is_better=name not in less_is_better)
                for name in figures
                if name in product
            }
    return document
