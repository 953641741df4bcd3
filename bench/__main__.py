"""`scripts/bench`: the product against the bare loop and mlx_lm.server, in one run on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

from bench.plan import PARTS, STACK, STACK_QUICK, Amount, Subject, amount_for
from bench.run import measure
from bench.table import show
from provider.engine.model_folder import weight_bytes
from provider.errors import ProviderError
from provider.models.catalogue import DEMO_MODEL
from provider.models.library import ModelLibrary
from provider.system.paths import resolve_paths

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "models" / "tiny-qwen3"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure the product against a bare mlx-lm loop and mlx_lm.server, in turn.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--quick", action="store_true", help="under three minutes; fewer rounds, less certain"
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="ID | ID=FOLDER",
        help="measure with this model (default: the fixture model, and the demo model where it is here)",
    )
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}, with commas between")
    parser.add_argument("--rounds", type=int, help="so many rounds of each part that is measured in rounds")
    return parser.parse_args()


def subjects(options: argparse.Namespace) -> list[Subject]:
    """Raises `ProviderError` for a model that isn't here."""
    library = ModelLibrary.configured(resolve_paths(os.environ).models, {})
    found: list[tuple[str, Path]] = []
    if options.model:
        for name in options.model:
            model = library.identify(name)
            found.append((model.id, library.find(model) or library.pull(model, _say)))
    else:
        found.append((FIXTURE.name, FIXTURE))
        if (demo := library.find(library.identify(DEMO_MODEL))) is not None:
            found.append((DEMO_MODEL, demo))
    on_gpu = platform.system() == "Darwin"
    return [
        Subject(
            name,
            path,
            _amount(options, amount_for(name, weight_bytes(path), quick=options.quick, on_gpu=on_gpu)),
        )
        for name, path in found
    ]


def _amount(options: argparse.Namespace, amount: Amount) -> Amount:
    if options.rounds is None:
        return amount
    names = ("chat_rounds", "seeded_rounds", "tools_rounds", "turn_rounds", "long_rounds")
    return replace(amount, **dict.fromkeys(names, options.rounds))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    parts = set(options.only.split(",")) if options.only else set(PARTS)
    if unknown := parts - set(PARTS):
        _say(f"scripts/bench: --only: no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        return 2
    stack_amount = STACK_QUICK if options.quick else STACK
    try:
        chosen = subjects(options) if parts != {"stack"} else []
        document = asyncio.run(measure(chosen, stack_amount, parts, quick=options.quick))
    except (ProviderError, RuntimeError) as error:
        _say(f"scripts/bench: {error}")
        return 1
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        show(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
