"""Weights into memory in small pieces, so that a running batch of another model goes on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from provider.engine.errors import EngineStartError
from provider.engine.kv_cost import KvCost
from provider.engine.memory import cost_of
from provider.engine.spec import ModelSpec

_PIECE_BYTES: Final = 256 << 20


class Loading:
    """Iterate to load; between two pieces the caller may do other work.

    At the end `model` is there, and `cost`, what its keys and values take.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.model: Any = None
        self.cost = KvCost(())

    def pieces(self) -> Iterator[None]:
        """Raises `EngineStartError`, saying what to do, for weights that can't be loaded or don't run."""
        spec = self.spec
        assert spec.path is not None
        try:
            model, _ = load_model(spec.path, lazy=True)
            yield
            pending: list[mx.array] = []
            size = 0
            for _, weight in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())):
                pending.append(weight)
                size += weight.nbytes
                if size >= _PIECE_BYTES:
                    mx.eval(pending)
                    pending, size = [], 0
                    yield
            mx.eval(pending)
            yield
            # One token through it: shows that the weights fit the architecture, builds the kernels now and
            # not in the first job's step, and leaves a cache to read the cost of a token off.
            cache = make_prompt_cache(model)
            if not all(hasattr(part, "merge") for part in cache):
                raise ValueError("its cache can't be batched")
            mx.eval(model(mx.array([[0]]), cache=cache))
            self.cost = cost_of(cache)
        except Exception as error:
            raise EngineStartError(
                f"model {spec.id}: {spec.path} can't be loaded ({type(error).__name__}: {str(error)[:200]});"
                " pull or convert the model again"
            ) from error
        self.model = model
