#!/usr/bin/env python3
"""What grammars cost: each decoding step, and each compilation.

    scripts/bench_grammar.py              the tiny and the demo model, as a table
    scripts/bench_grammar.py --json       one JSON document
    scripts/bench_grammar.py --quick      the tiny model alone, fewer rounds
    scripts/bench_grammar.py --model DIR  another mlx-lm folder

Steps: batches of 1 and 8 rows decode side by side, a block of steps each in turn, so that whatever else the
machine does falls on both. `auto` rows write free text under the `auto` grammar of ten tools, `call` rows are
in the middle of a call's string. A ratio is the median over the pairs of blocks, in tokens per second: with
the grammar ÷ without, so 1 is free of charge. "One of eight" compares whole batches: a step is slow for all.
The last two columns are the same in CPU time of the process, with one BLAS thread, so that none waits by
spinning: they hold on a busy machine, where the clock doesn't.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlx.core as mx

from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.engine.base import Constraint, ThinkMarkers
from provider.engine.batch import MaskedBatchGenerator
from provider.engine.drawing import Greedy
from provider.engine.grammars import Grammars, Held
from provider.engine.launch import child_environment, find_openblas
from provider.engine.loading import Loading
from provider.engine.mask_kernel import chosen
from provider.engine.prompt import TextModel
from provider.engine.spec import ModelSpec
from provider.models.catalogue import DEMO_MODEL
from provider.models.library import ModelLibrary
from provider.system.paths import resolve_paths

TINY = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "models" / "tiny-qwen3"
PROMPT_TOKENS = 64
TOOL_COUNTS = (1, 10, 100)


def tool(number: int) -> dict[str, Any]:
    """A function of middling size, as agents declare them."""
    properties: dict[str, Any] = {
        "path": {"type": "string", "description": "An absolute path"},
        "mode": {"type": "string", "enum": ["read", "write", "append"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 20},
        "options": {
            "type": "object",
            "properties": {
                "force": {"type": "boolean"},
                "depth": {"type": "integer"},
                "name": {"type": "string"},
            },
            "required": ["force"],
        },
    }
    function = {
        "name": f"function_{number}",
        "parameters": {"type": "object", "properties": properties, "required": ["path", "mode"]},
    }
    return {"type": "function", "function": function}


class Endless:
    """A model that never ends its turn nor opens a call: every row decodes text as long as it is asked."""

    def __init__(self, model: Any, unwanted: Sequence[int]) -> None:
        self._model = model
        self._unwanted = mx.array(list(unwanted))
        self.layers = model.layers
        if hasattr(model, "make_cache"):
            self.make_cache = model.make_cache

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        return self._model(inputs, cache=cache).at[:, :, self._unwanted].add(-1e4)


class Bench:
    def __init__(self, folder: Path, rounds: int, steps: int) -> None:
        think = ThinkMarkers("<think>", "</think>")
        self.spec = ModelSpec(folder.name, Family.QWEN, context_length=8192, path=folder, think=think)
        self.text = TextModel(self.spec, forcing=True)
        self._rounds = rounds
        self._steps = steps
        loading = Loading(self.spec)
        list(loading.pieces())
        vocabulary = self.text.tokenizer.get_vocab()
        markup = [vocabulary[one] for one in ("<tool_call>", "<think>") if one in vocabulary]
        self._model: Any = Endless(loading.model, [*self.text.end_tokens, *markup])

    def held(self, choice: str, count: int) -> Held:
        grammars = self.text.grammars
        assert isinstance(grammars, Grammars)
        asked = Constraint(Family.QWEN, [tool(number) for number in range(count)], ToolChoice(choice), True)
        prepared = grammars.prepare(asked, reasoning_open=False)
        assert isinstance(prepared, Held)
        return prepared

    # --- steps ---------------------------------------------------------------------------------------

    def steps(self) -> dict[str, Any]:
        return {
            "auto, 1 row": self._compare(1, "auto", 1),
            "auto, 8 rows": self._compare(8, "auto", 8),
            "call, 1 row": self._compare(1, "call", 1),
            "call, 8 rows": self._compare(8, "call", 8),
            "one of eight in auto": self._compare(8, "auto", 1),
            "one of eight in a call": self._compare(8, "call", 1),
        }

    def _compare(self, rows: int, kind: str, held: int) -> dict[str, float]:
        free = self._batch(rows, "free", 0)
        grammar = self._batch(rows, kind, held)
        pairs = []
        for number in range(self._rounds):
            # Whoever goes first finds the caches cold, so they take turns.
            first, second = (free, grammar) if number % 2 == 0 else (grammar, free)
            times = {id(first): self._block(first), id(second): self._block(second)}
            pairs.append((*times[id(free)], *times[id(grammar)]))
        for batch in (free, grammar):
            batch.close()
        without = statistics.median(pair[0] for pair in pairs)
        return {
            "tokens_per_second_without": round(rows / without, 2),
            "ratio": round(statistics.median(p[0] / p[2] for p in pairs), 4),
            "ratio_of_best": round(min(p[0] for p in pairs) / min(p[2] for p in pairs), 4),
            "added_us_per_step": round(statistics.median(p[2] - p[0] for p in pairs) * 1e6, 1),
            "cpu_ratio": round(statistics.median(p[1] / p[3] for p in pairs), 4),
            "added_cpu_us_per_step": round(statistics.median(p[3] - p[1] for p in pairs) * 1e6, 1),
        }

    def _batch(self, rows: int, kind: str, held: int) -> Any:
        batch: Any = MaskedBatchGenerator(
            self._model, stop_tokens=[], completion_batch_size=rows, prefill_batch_size=rows
        )
        prepared = self.held("auto" if kind == "auto" else "required", 10) if held else None
        sampler = Greedy(reported=False)
        for row in range(rows):
            own: list[Any] = []
            if prepared is not None and row < held:
                own = [prepared.row()]
                if kind == "call":
                    self._enter_call(own[0])
            prompt = [(37 * row + 11 * place) % 500 + 5 for place in range(PROMPT_TOKENS)]
            batch.insert([prompt], max_tokens=[100_000], samplers=[sampler], logits_processors=[own])
        warm = 0
        while warm < rows * 3:
            warm += len(batch.next_generated())
        return batch

    def _enter_call(self, row: Any) -> None:
        """As if the row had just begun its call's first string."""
        opening = '<tool_call>\n{"name": "function_3", "arguments": {"path": "'
        for token in self.text.tokenizer.encode(opening, add_special_tokens=False):
            row.advance(token)
        assert row.failure is None

    def _block(self, batch: Any) -> tuple[float, float]:
        """Seconds a step: of the clock, and of this process's work, which a busy machine touches less."""
        begun, worked = time.perf_counter(), time.process_time()
        for _ in range(self._steps):
            batch.next_generated()
        return (time.perf_counter() - begun) / self._steps, (time.process_time() - worked) / self._steps

    # --- compilation ---------------------------------------------------------------------------------

    def compilations(self) -> dict[str, Any]:
        return {f"{count} tools": self._compilation(count) for count in TOOL_COUNTS}

    def _compilation(self, count: int) -> dict[str, float]:
        cold, kept, copied = [], [], []
        for number in range(5):
            self.text.grammars = self.text._grammars() if number else self.text.grammars
            cold.append(_seconds(lambda: self.held("auto", count)))
            prepared = self.held("auto", count)
            kept.append(_seconds(lambda: self.held("auto", count)))
            copied.append(_seconds(prepared.row))
        return {
            "cold_ms": round(statistics.median(cold) * 1e3, 2),
            "kept_ms": round(statistics.median(kept) * 1e3, 2),
            "row_us": round(statistics.median(copied) * 1e6, 1),
        }


def _seconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def table(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"masks: {report['masks']}"
    for model, figures in report["models"].items():
        yield f"\n{model}\n"
        head = f"{'step':<26}{'tokens/s without':>18}{'with ÷ without':>16}"
        yield f"{head}{'of the best':>13}{'added µs/step':>15}{'of CPU time':>13}{'added µs':>10}"
        for name, row in figures["steps"].items():
            yield (
                f"{name:<26}{row['tokens_per_second_without']:>18}{row['ratio']:>16}"
                f"{row['ratio_of_best']:>13}{row['added_us_per_step']:>15}"
                f"{row['cpu_ratio']:>13}{row['added_cpu_us_per_step']:>10}"
            )
        yield f"\n{'compile':<26}{'cold ms':>18}{'kept ms':>16}{'row µs':>13}"
        for name, row in figures["compilations"].items():
            yield f"{name:<26}{row['cold_ms']:>18}{row['kept_ms']:>16}{row['row_us']:>13}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="the tiny model alone, fewer rounds")
    parser.add_argument("--model", type=Path, action="append", help="an mlx-lm folder; may be repeated")
    asked = parser.parse_args()
    if find_openblas() is not None and "openblas" not in os.environ.get("LD_PRELOAD", ""):
        environment = child_environment(os.environ) | {"OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    folders = asked.model or ([TINY] if asked.quick else [TINY, _demo()])
    models = {}
    for folder in folders:
        tiny = folder == TINY
        bench = Bench(folder, rounds=6 if asked.quick else 12, steps=100 if tiny else 12)
        models[folder.name] = {"steps": bench.steps(), "compilations": bench.compilations()}
    report = {"masks": chosen()[1], "models": models}
    print(json.dumps(report, indent=2) if asked.json else "\n".join(table(report)))
    return 0


def _demo() -> Path:
    """The demo model's folder; fetched if it isn't there."""
    library = ModelLibrary(resolve_paths(os.environ).models)
    return library.pull(library.identify(DEMO_MODEL), lambda step: print(step, file=sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
