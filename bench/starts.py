"""How long each takes from its start to the first token, and what it holds in memory then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.figures import compared
from bench.prompts import Chat
from bench.systems import Bare, MlxServer, Product, System


async def started(model: str, path: Path, first: Chat) -> tuple[Bare, MlxServer, Product]:
    """All three, one after the other; none is left if one can't start."""
    bare = await Bare.start(model, path, first)
    try:
        server = await MlxServer.start(model, path, first)
        try:
            return bare, server, await Product.start(model, path, first)
        except BaseException:
            await server.stop()
            raise
    except BaseException:
        await bare.stop()
        raise


def figures(system: System) -> dict[str, float]:
    memory = system.memory()
    return {
        "start_to_first_token_s": system.start_s,
        "engine_mib": memory["engine"] / 2**20,
        "rest_mib": memory["rest"] / 2**20,
    }


def document(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    return compared(rounds, less_is_better=frozenset({"start_to_first_token_s", "engine_mib", "rest_mib"}))
