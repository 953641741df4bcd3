"""What the daemon knows of its engine: folded from the child's reports, asked by heartbeat and status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway_protocol.messages import ModelState
from provider.engine.base import EngineStatus, ModelInfo
from provider.engine.ipc import Beat
from provider.engine.model_folder import weight_bytes
from provider.engine.spec import EngineSettings


class Changed:
    """Wakes everyone who waits, once for each change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class EngineView:
    """`on_*` take the child's reports; totals run over all restarts."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        grammars = settings.backend == "mlx" and settings.forcing
        self.infos: Mapping[str, ModelInfo] = {
            spec.id: spec.info(grammars=grammars) for spec in settings.models
        }
        self.changed = Changed()
        self.submitted = 0
        self.parked = False
        self._device: str = settings.device
        self._slots = settings.slots or 1
        self._serving = False
        self._restarts = 0
        self._pid: int | None = None
        self._beat = Beat()
        self._before = Beat()
        self._states = dict.fromkeys(self.infos, ModelState.UNLOADED)
        self._faults: dict[str, str] = {}
        self._trouble: str | None = "starting"
        self._resident: tuple[str, ...] = tuple(self.infos)[:1] if settings.preload else ()

    @property
    def ready(self) -> bool:
        usable = (ModelState.READY, ModelState.UNLOADED, ModelState.LOADING)
        return self._serving and any(state in usable for state in self._states.values())

    @property
    def hopeless(self) -> bool:
        """Every model was tried and none can be loaded."""
        return self._serving and not self.ready

    def detail(self) -> str | None:
        if self.ready:
            return None
        if self._trouble is not None:
            return self._trouble
        return "; ".join(self._faults.values()) or "no model is configured"

    def to_preload(self) -> tuple[str, ...]:
        """What the next child is to load before it serves: the first model, or what was resident."""
        return self._resident

    def weight_bytes(self, model: str) -> int:
        spec = self._settings.model(model)
        return weight_bytes(spec.path) if spec is not None and spec.path is not None else 0

    def on_spawn(self, pid: int) -> None:
        self._pid = pid
        self._trouble = "starting"
        self.changed.set()

    def on_hello(self, device: str, slots: int) -> None:
        self._device, self._slots = device, slots
        self._trouble = "loading the model"
        self.changed.set()

    def on_model(self, model: str, state: ModelState, detail: str | None) -> None:
        self._states[model] = state
        self._faults.pop(model, None)
        if detail is not None:
            self._faults[model] = detail
        self.changed.set()

    def on_serving(self, slots: int) -> None:
        self._slots = slots
        self._serving = True
        self._trouble = None
        self.changed.set()

    def on_beat(self, beat: Beat) -> None:
        self._beat = beat

    def on_death(self, how: str, delay: float, *, crash_loop: bool) -> None:
        self._child_gone(ModelState.LOADING)
        self._restarts += 1
        again = f"next start in {delay:.0f} s" if delay >= 1 else "restarting"
        self._trouble = f"{how}; it dies again and again, {again}" if crash_loop else f"{how}; {again}"
        self.changed.set()

    def on_no_start(self, how: str) -> None:
        self._child_gone(ModelState.UNLOADED)
        self._trouble = how
        self.changed.set()

    def on_parking(self) -> None:
        """The child is being ended: from now on nothing can be given to it."""
        self._serving = False
        self._trouble = "unloading while paused"
        self.changed.set()

    def on_park(self) -> None:
        self._child_gone(ModelState.UNLOADED)
        self.parked = True
        self._trouble = "unloaded while paused"
        self.changed.set()

    def on_unpark(self) -> None:
        self.parked = False
        self._trouble = "starting"
        self.changed.set()

    def _child_gone(self, resident_become: ModelState) -> None:
        """What was resident is loaded again by the next child; its figures count on."""
        resident = tuple(model for model, state in self._states.items() if state is ModelState.READY)
        self._resident = resident or self._resident
        for model in self._resident:
            self._states[model] = resident_become
        self._serving = False
        self._pid = None
        last, before = self._beat, self._before
        self._before = Beat(
            before.steps + last.steps,
            before.generated_tokens + last.generated_tokens,
            before.cancels + last.cancels,
        )
        self._beat = Beat(limit_bytes=last.limit_bytes)

    def status(self, *, running: int, waiting: int) -> EngineStatus:
        beat, before = self._beat, self._before
        return EngineStatus(
            ready=self.ready,
            detail=self.detail(),
            device=self._device,
            models=dict(self._states),
            slots_total=self._slots,
            slots_free=max(0, self._slots - running - waiting) if self.ready else 0,
            queued=waiting,
            running=running,
            active_bytes=beat.active_bytes,
            cache_bytes=beat.cache_bytes,
            limit_bytes=beat.limit_bytes,
            restarts=self._restarts,
            steps=before.steps + beat.steps,
            generated_tokens=before.generated_tokens + beat.generated_tokens,
            submitted=self.submitted,
            cancels=before.cancels + beat.cancels,
            child_pid=self._pid,
            parked=self.parked,
        )
