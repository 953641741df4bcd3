"""Which models are in memory, and getting one there: piece by piece, between the steps of the others.

The least recently used idle model goes when another needs its place, or when nobody asked for it for long.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator

import mlx.core as mx

from gateway_protocol.messages import ModelState
from provider.engine.errors import EngineStartError
from provider.engine.loading import Loading
from provider.engine.memory import MachineMemory
from provider.engine.model_folder import weight_bytes
from provider.engine.prompt import TextModel
from provider.engine.prompt_cache import PromptCache
from provider.engine.resident import ResidentModel

Report = Callable[[str, ModelState, str | None], None]


class Residents:
    """Only the step thread comes here. `report` tells the daemon of each change of a model's state."""

    def __init__(
        self,
        memory: MachineMemory,
        prompts: PromptCache,
        *,
        slots: int,
        prefill_step: int,
        idle_seconds: float | None,
        report: Report,
    ) -> None:
        self._memory = memory
        self._prompts = prompts
        self._slots = slots
        self._prefill_step = prefill_step
        self._idle_seconds = idle_seconds
        self._report = report
        self._models: dict[str, ResidentModel] = {}
        self._wanted: deque[TextModel] = deque()
        self._loading: tuple[Loading, TextModel, Iterator[None]] | None = None

    def get(self, model: str) -> ResidentModel | None:
        return self._models.get(model)

    def all(self) -> list[ResidentModel]:
        return list(self._models.values())

    @property
    def loading(self) -> bool:
        return self._loading is not None

    @property
    def changing(self) -> bool:
        """A model is being loaded, or waits for room to be."""
        return self._loading is not None or bool(self._wanted)

    def is_loading(self, model: str) -> bool:
        return self._loading is not None and self._loading[1].spec.id == model

    def want(self, text: TextModel) -> None:
        """Load this model, after those already wanted; nothing to do if it is here or on its way."""
        model = text.spec.id
        if model not in self._models and not self.is_loading(model) and text not in self._wanted:
            self._wanted.append(text)

    def forget(self, model: str) -> None:
        """Nobody waits for this model any more; one that is being loaded already is loaded."""
        self._wanted = deque(text for text in self._wanted if text.spec.id != model)

    def advance(self) -> str | None:
        """Load one piece; returns the ID of a model whose loading ended with it, well or not."""
        if self._loading is None and not (self._wanted and self._begin()):
            return None
        if self._loading is None:
            return self._wanted.popleft().spec.id
        loading, text, pieces = self._loading
        model = text.spec.id
        try:
            next(pieces)
            return None
        except StopIteration:
            self._models[model] = ResidentModel(
                text,
                loading.model,
                loading.cost,
                self._prompts,
                slots=self._slots,
                prefill_step=self._prefill_step,
            )
            self._report(model, ModelState.READY, None)
        except EngineStartError as error:
            self.failed(model, str(error))
        self._loading = None
        return model

    def _begin(self) -> bool:
        """Start on the first that is wanted. True: it is under way, or it failed at once."""
        text = self._wanted[0]
        assert text.spec.path is not None
        needed = weight_bytes(text.spec.path)
        if needed > self._memory.limit_bytes:
            self.failed(
                text.spec.id,
                f"model {text.spec.id}: its weights are {needed >> 20} MiB, more than the"
                f" {self._memory.limit_bytes >> 20} MiB that the engine may use here; choose a smaller model",
            )
            return True
        if not self._make_room(needed):
            return False
        self._wanted.popleft()
        loading = Loading(text.spec)
        self._loading = (loading, text, loading.pieces())
        self._report(text.spec.id, ModelState.LOADING, None)
        return True

    def _make_room(self, needed: int) -> bool:
        """Unload what is idle, oldest first, until `needed` bytes fit; False while others run."""
        while self._memory.active_bytes + needed > self._memory.ceiling():
            if self._prompts.nbytes:
                self._prompts.shrink(0)
                mx.clear_cache()
                continue
            if not self.unload_one_idle():
                # With nothing in memory but this to come, the machine's own figure is only a worry.
                return not self._models
        return True

    def unload_one_idle(self, but: ResidentModel | None = None) -> bool:
        """Unload the idle model that was used longest ago; False where there is none."""
        idle = [one for one in self._models.values() if not one.rows() and one is not but]
        if idle:
            self.unload(min(idle, key=lambda one: one.used_at).text.spec.id)
        return bool(idle)

    def failed(self, model: str, detail: str) -> None:
        self._report(model, ModelState.FAILED, detail)
        mx.clear_cache()

    def unload_idle(self, wanted: Callable[[str], bool]) -> None:
        """Unload what nobody used for the configured time, but for those that are `wanted`."""
        if self._idle_seconds is None:
            return
        now = time.monotonic()
        for model, resident in list(self._models.items()):
            idle = not resident.rows() and now - resident.used_at >= self._idle_seconds
            if idle and not wanted(model):
                self.unload(model)

    def unload(self, model: str) -> None:
        self._prompts.forget_model(model)
        self._models.pop(model).close()
        # Modules and batches refer to each other in rings: without this the weights would stay for a while.
        gc.collect()
        mx.clear_cache()
        self._report(model, ModelState.UNLOADED, None)
