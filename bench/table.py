"""The document as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

SYSTEMS = ("bare", "mlx_lm.server", "product")


def show(document: dict[str, Any]) -> None:
    console = Console()
    machine = document["machine"]
    console.print(
        f"{machine['os']}, {machine['cpu']}, {machine['cores']} cores, {machine['device']};"
        f" mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}; load {machine['load_average'][0]} at the start"
    )
    for model, parts in document["models"].items():
        console.print(_speeds(model, parts))
        console.print(_waits(model, parts))
    if "stack" in document:
        console.print(_stack(document["stack"]))
    console.print(_targets(document["targets"]))
    console.print(f"{document['seconds']:.0f} s in all")


def _speeds(model: str, parts: dict[str, Any]) -> Table:
    table = Table(title=f"{model}: tokens a second (medians); ratios of pairs / of bests")
    for column in ("", *SYSTEMS, "÷ bare", "÷ server", "÷ bare by engine CPU"):
        table.add_column(column, justify="left" if not column else "right")
    rows = [(f"chat at {streams}", "tokens_per_s", one) for streams, one in parts.get("chat", {}).items()]
    rows += [(name, "whole_tokens_per_s", parts[name]) for name in ("seeded", "tools") if name in parts]
    for name, figure, one in rows:
        table.add_row(
            name,
            *(_median(one.get(system, {}).get(figure)) for system in SYSTEMS),
            _ratio(one["product/bare"].get(figure)),
            _ratio(one["product/mlx_lm.server"].get(figure)),
            _ratio(one["product/bare"].get("tokens_per_engine_cpu_s")),
        )
    return table


def _waits(model: str, parts: dict[str, Any]) -> Table:
    table = Table(title=f"{model}: seconds and MiB (medians)")
    for column in ("", *SYSTEMS):
        table.add_column(column, justify="left" if not column else "right")
    rows: list[tuple[str, str, str]] = [
        ("start", "start_to_first_token_s", "start to first token, s"),
        ("start", "engine_mib", "memory then, engine, MiB"),
        ("start", "rest_mib", "memory then, the rest, MiB"),
        ("turns", "cold_ttft_s", "first token, cold, s"),
        ("turns", "second_ttft_s", "first token, second turn, s"),
        ("turns", "third_ttft_s", "first token, third turn, s"),
        ("long_prompt", "worst_gap_s", "worst gap under a long prompt, s"),
    ]
    for part, figure, words in rows:
        if part in parts:
            table.add_row(words, *(_median(parts[part].get(system, {}).get(figure)) for system in SYSTEMS))
    if "long_prompt" in parts:
        table.add_row("one prefill chunk, s", _median(parts["long_prompt"]["chunk_s"]), "", "")
    return table


def _stack(stack: dict[str, Any]) -> Table:
    table = Table(title=f"the stack alone, {stack['streams']} streams, scripted engine (medians)")
    for column in (
        "",
        "tokens/s",
        "CPU µs/token",
        "engine's CPU µs/token",
        "tokens/event",
        "tokens/s of a core",
    ):
        table.add_column(column, justify="left" if not column else "right")
    for name, one in stack.items():
        if isinstance(one, dict):
            figures = ("tokens_per_s", "cpu_us_per_token", "engine_cpu_us_per_token", "tokens_per_event")
            cells = [_median(one[figure]) for figure in figures]
            table.add_row(name.replace("_", " "), *cells, f"{one['tokens_per_s_of_one_core']:g}")
    return table


def _targets(entries: list[dict[str, Any]]) -> Table:
    table = Table(title="targets")
    for column in ("model", "what", "bound", "of pairs", "of bests", "met"):
        table.add_column(column, justify="right" if column.startswith("of") else "left")
    for one in entries:
        met = "yes" if one["met"] else "at best" if one["met_at_best"] else "no"
        table.add_row(one["model"], one["what"], one["bound"], f"{one['value']:g}", f"{one['best']:g}", met)
    return table


def _median(figure: dict[str, Any] | None) -> str:
    return f"{figure['median']:g}" if figure else ""


def _ratio(figure: dict[str, float] | None) -> str:
    return f"{figure['paired']:g} / {figure['best']:g}" if figure else ""
