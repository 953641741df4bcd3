"""Which models are in memory, and getting one there: piece by piece, between the steps of the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import mlx.core as mx

from gateway_protocol.messages import ModelState
from provider.engine.errors import EngineStartError
from provider.engine.loading import Loading
from provider.engine.prompt import TextModel
from provider.engine.prompt_cache import PromptCache
from provider.engine.resident import ResidentModel

Report = Callable[[str, ModelState, str | None], None]


class Residents:
    """Only the step thread comes here. `report` tells the daemon of each change of a model's state."""

    def __init__(self, prompts: PromptCache, *, slots: int, prefill_step: int, report: Report) -> None:
        self._prompts = prompts
        self._slots = slots
        self._prefill_step = prefill_step
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
        return self._loading is not None or bool(self._wanted)

    def want(self, text: TextModel) -> None:
        """Load this model, after those already wanted; nothing to do if it is here or on its way."""
        model = text.spec.id
        under_way = self._loading is not None and self._loading[1].spec.id == model
        if model not in self._models and not under_way and text not in self._wanted:
            self._wanted.append(text)

    def advance(self) -> str | None:
        """Load one piece; returns the ID of a model whose loading ended with it, well or not."""
        if self._loading is None:
            if not self._wanted:
                return None
            text = self._wanted.popleft()
            loading = Loading(text.spec)
            self._loading = (loading, text, loading.pieces())
            self._report(text.spec.id, ModelState.LOADING, None)
        loading, text, pieces = self._loading
        model = text.spec.id
        try:
            next(pieces)
            return None
        except StopIteration:
            self._models[model] = ResidentModel(
                text, loading.model, self._prompts, slots=self._slots, prefill_step=self._prefill_step
            )
            self._report(model, ModelState.READY, None)
        except EngineStartError as error:
            self.failed(model, str(error))
        self._loading = None
        return model

    def failed(self, model: str, detail: str) -> None:
        self._report(model, ModelState.FAILED, detail)
        mx.clear_cache()

    def unload(self, model: str) -> None:
        resident = self._models.pop(model)
        resident.close()
        del resident
        self._prompts.forget_model(model)
        mx.clear_cache()
        self._report(model, ModelState.UNLOADED, None)
