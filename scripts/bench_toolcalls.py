#!/usr/bin/env python3
"""Show that reading tool calls costs time in proportion to the output, however hostile it is.

    scripts/bench_toolcalls.py            a table
    scripts/bench_toolcalls.py --json     one JSON document
    scripts/bench_toolcalls.py --quick    a quarter of the size

Each output is read at half its size and at its size; the ratio of the two times is about 2 where the cost is
linear, and 4 where it is quadratic. CPU time of this process, the best of several runs taken in turn. The
sizes are those the contract speaks of: 1 MiB of arguments fed character by character, 256 KiB of openers
without closers, 10,000 small parameters.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy, OutputInterpreter, split_special

KIB = 1024
TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}}},
    "wide": {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(10_000)}},
}
# Under the cap of 1 MiB, with the braces and the name of the member.
ARGUMENT_CHARS = KIB * KIB - 64
OPENERS = ("<tool_call>", "<function=f>", "<parameter=a>", "<tool_call>{", "<function=f></function>")


def in_pieces(family: Family, text: str, size: int) -> list[tuple[str, int | None]]:
    return [
        (stretch[at : at + (size if token_id is None else len(stretch))], token_id)
        for stretch, token_id in split_special(family, text)
        for at in range(0, len(stretch), size if token_id is None else len(stretch))
    ]


def hermes(size: int) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {{"a": "{"x" * size}"}}}}\n</tool_call>'


def hermes_numbers(size: int) -> str:
    return (
        f'<tool_call>\n{{"name": "f", "arguments": {{"a": [{",".join("1" * (size // 2))}]}}}}\n</tool_call>'
    )


def function_xml(size: int) -> str:
    return f"<function=f>\n<parameter=a>\n{'x' * size}\n</parameter>\n</function>"


def closers_in_value(size: int) -> str:
    value = "</parameter> is text\n" * (size // 21)
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


def quoted_parameters(size: int) -> str:
    value = "<parameter=a>\nx\n</parameter>\ny\n" * (size // 33)
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}</parameter>\n</function>\n</tool_call>"


def small_parameters(count: int) -> str:
    members = "".join(f"<parameter=p{number}>\nv\n</parameter>\n" for number in range(count))
    return f"<tool_call>\n<function=wide>\n{members}</function>\n</tool_call>"


def llama(size: int) -> str:
    return f'{{"name": "f", "parameters": {{"a": "{"x" * size}"}}}}'


def python_form(size: int) -> str:
    return f"<tool_call>f(a='{'x' * size}')</tool_call>"


def harmony(size: int) -> str:
    return f'<|channel|>commentary to=functions.f<|message|>{{"a": "{"x" * size}"}}<|call|>'


def repeated(unit: str) -> Callable[[int], str]:
    return lambda size: unit * (size // len(unit))


# name, family, what the output is, its full size, characters a piece, how it is delivered
SCENARIOS: list[tuple[str, Family, Callable[[int], str], int, int, str]] = [
    ("hermes 1 MiB by char", Family.QWEN, hermes, ARGUMENT_CHARS, 1, "incremental"),
    ("hermes 1 MiB by char, whole", Family.QWEN, hermes, ARGUMENT_CHARS, 1, "whole"),
    ("hermes 1 MiB at once", Family.QWEN, hermes, ARGUMENT_CHARS, 1 << 30, "whole"),
    ("hermes array of numbers", Family.QWEN, hermes_numbers, 512 * KIB, 4, "incremental"),
    ("function-XML 1 MiB by char", Family.QWEN, function_xml, ARGUMENT_CHARS, 1, "incremental"),
    ("function-XML 1 MiB by char, buffered", Family.QWEN, function_xml, ARGUMENT_CHARS, 1, "buffered"),
    ("function-XML closers in a value", Family.QWEN, closers_in_value, 512 * KIB, 4, "incremental"),
    ("function-XML parameters in a value", Family.QWEN, quoted_parameters, 512 * KIB, 4, "incremental"),
    ("function-XML 10,000 parameters", Family.QWEN, small_parameters, 10_000, 4, "incremental"),
    ("llama 1 MiB by char", Family.LLAMA, llama, ARGUMENT_CHARS, 1, "incremental"),
    ("python form 1 MiB by char", Family.QWEN, python_form, ARGUMENT_CHARS, 1, "incremental"),
    ("harmony 1 MiB by char", Family.GPT_OSS, harmony, ARGUMENT_CHARS, 1, "incremental"),
    *(
        (f"256 KiB of {unit!r}", Family.QWEN, repeated(unit), 256 * KIB, 4, "whole")
        for unit in OPENERS
    ),
    ("256 KiB of '<'", Family.QWEN, repeated("<"), 256 * KIB, 4, "whole"),
    ("256 KiB of '<parameter=' in a value", Family.QWEN,
     lambda size: "<function=f><parameter=a>" + repeated("<parameter=")(size), 256 * KIB, 4, "incremental"),
    ("256 KiB of '{'", Family.LLAMA, repeated('{"name": "f", "parameters": {\n'), 256 * KIB, 4, "whole"),
    ("256 KiB of blank lines", Family.QWEN, repeated("\n"), 256 * KIB, 1, "whole"),
    ("256 KiB of openers in reasoning", Family.QWEN,
     lambda size: "<think>\n" + repeated("<tool_call>{")(size), 256 * KIB, 4, "whole"),
    ("plain text", Family.QWEN, repeated("The ferry leaves at nine. "), 512 * KIB, 5, "whole"),
]  # fmt: skip


def read_once(family: Family, pieces: list[tuple[str, int | None]], delivery: str) -> float:
    policy = CallPolicy(
        family=family,
        tools=TOOLS,
        parallel=True,
        delivery=delivery,  # type: ignore[arg-type]
        think=("<think>", "</think>"),
    )
    interpreter = OutputInterpreter(policy)
    gc.collect()
    started = time.process_time()
    for text, token_id in pieces:
        interpreter.feed(text, token_id)
    interpreter.finish("stop")
    return time.process_time() - started


def measure(
    family: Family, write: Callable[[int], str], size: int, piece: int, delivery: str, runs: int
) -> dict[str, Any]:
    half, full = (in_pieces(family, write(part), piece) for part in (size // 2, size))
    times = [(read_once(family, half, delivery), read_once(family, full, delivery)) for _ in range(runs)]
    best_half, best_full = (min(column) for column in zip(*times, strict=True))
    return {
        "pieces": len(full),
        "seconds_half": round(best_half, 4),
        "seconds": round(best_full, 4),
        "us_per_piece": round(best_full / len(full) * 1e6, 2),
        "ratio": round(best_full / best_half, 2) if best_half else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="a quarter of the size")
    parser.add_argument("--runs", type=int, default=2, help="runs of each size, the best counts (default 2)")
    options = parser.parse_args()
    rows = {}
    for name, family, write, size, piece, delivery in SCENARIOS:
        scaled = size // 4 if options.quick else size
        row = rows[name] = measure(family, write, scaled, piece, delivery, options.runs)
        if not options.json:
            each = f"{row['pieces']:>9,} pieces {row['us_per_piece']:>8.2f} µs each"
            print(f"{name:40} {each}   ×{row['ratio']}", flush=True)
    if options.json:
        print(json.dumps({"ratio": "time at full size to time at half", "scenarios": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
