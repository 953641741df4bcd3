"""The MLX backend: one thread owns MLX and runs every model's batch; a second one renders prompts.

    daemon ─▶ child's main thread ─▶ renderer ─▶ step thread: waiting line ─▶ rows of a batch ─▶ daemon

Jobs join and leave the running batch between two steps. Only the step thread touches an MLX array.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

import mlx.core as mx

from gateway_protocol.messages import ModelState
from provider.engine.admission import MOST_SLOTS, Admission
from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    GenerationRequest,
    Rejected,
    StopCause,
)
from provider.engine.ipc import Beat, ChildChannel, Hello, JobEvent, ModelReport, Serving, Setup
from provider.engine.memory import MachineMemory
from provider.engine.pace import Pace
from provider.engine.prompt import TextModel
from provider.engine.prompt_cache import PromptCache
from provider.engine.render import Prepared, Renderer
from provider.engine.resident import ResidentModel
from provider.engine.residents import Residents
from provider.engine.row import Job, PreparedJob, Row
from provider.engine.spec import ModelSpec
from provider.engine.waiting_room import WaitingRoom

IDLE_BEAT_SECONDS: Final = 1.0
# What only time changes is looked at this often while the batch runs.
ATTEND_SECONDS: Final = 1.0
# A step that fails this often in a row won't get better in this process.
FAILED_STEPS_IN_A_ROW: Final = 3


class MlxBackend:
    """`submit`, `cancel` and `pause` are called by the child's main thread, the rest by the step thread."""

    def __init__(self, setup: Setup, channel: ChildChannel) -> None:
        settings = setup.settings
        self._settings = settings
        self._channel = channel
        self._renderer = Renderer(settings, on_prepared=self._prepared, on_text=self._text_opened)
        self._jobs: dict[int, Job] = {}
        self._wake = threading.Condition()
        self._calls: list[Callable[[], None]] = []
        self._memory = MachineMemory(settings.memory_limit_bytes)
        prompts = self._prompts = PromptCache()
        self._residents = Residents(
            self._memory,
            prompts,
            slots=settings.slots or MOST_SLOTS,
            prefill_step=settings.prefill_step,
            idle_seconds=settings.idle_unload_seconds,
            report=self._report_model,
        )
        self._admission = Admission(
            self._memory,
            prompts,
            self._residents,
            slots=settings.slots,
            prompt_cache_bytes=settings.prompt_cache_bytes,
        )
        prompts.room = self._admission.prompt_room
        self._waiting = WaitingRoom(
            self._admission,
            self._residents,
            prompts,
            seconds=settings.queue_seconds,
            length=settings.queue_length,
            refuse=self._refuse,
        )
        self._slots = self._admission.slots()
        self._preloading = set(setup.preload)
        self._serving = False
        self._attend_at = 0.0
        self._failed_steps = 0
        self._beat = Beat(limit_bytes=self._memory.limit_bytes)
        self._pace = Pace()

    def start(self) -> None:
        self._renderer.start()
        threading.Thread(target=self._run, name="engine-step", daemon=True).start()

    def submit(self, serial: int, request: GenerationRequest) -> None:
        job = self._jobs[serial] = Job(serial, request, time.monotonic())
        self._renderer.prepare(job)

    def cancel(self, serial: int) -> None:
        job = self._jobs.get(serial)
        if job is not None:
            job.cancelled = True
        self._call(self._count_cancel)

    def pause(self, serial: int, paused: bool) -> None:
        job = self._jobs.get(serial)
        if job is not None:
            job.paused = paused
            self._call(lambda: None)

    # --- from other threads into the step thread ---------------------------------------------------

    def _call(self, call: Callable[[], None]) -> None:
        with self._wake:
            self._calls.append(call)
            self._wake.notify()

    def _prepared(self, job: Job, prepared: Prepared) -> None:
        self._call(lambda: self._on_prepared(job, prepared))

    def _text_opened(self, spec: ModelSpec, text: TextModel | str) -> None:
        self._call(lambda: self._on_text(spec, text))

    def _report_model(self, model: str, state: ModelState, detail: str | None) -> None:
        self._channel.send(ModelReport(model, state, detail))

    # --- the step thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            on_gpu = mx.default_device().type == mx.DeviceType.gpu
            self._channel.send(Hello("gpu" if on_gpu else "cpu", self._slots))
            for model in sorted(self._preloading):
                spec = self._settings.model(model)
                assert spec is not None
                self._renderer.open_text(spec)
            while True:
                self._turn()
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _turn(self) -> None:
        with self._wake:
            if not self._calls and (seconds := self._idle_seconds()) > 0:
                self._wake.wait(seconds)
            calls, self._calls = self._calls, []
        for call in calls:
            call()
        began = time.monotonic()
        # A fast model's step takes little more than this turn's work: what nothing asks for is left out.
        if calls or self._restless or began >= self._attend_at:
            self._attend()
            self._attend_at = began + ATTEND_SECONDS
            began = time.monotonic()
        urgent = [self._step(resident) for resident in self._residents.all() if resident.busy]
        if not urgent or any(urgent) or self._pace.due(began, time.monotonic()):
            self._hand_on()

    @property
    def _restless(self) -> bool:
        """Whether something may come to pass without a call: a job enters, a model loads, a deadline ends."""
        return not self._serving or self._waiting.restless or self._residents.changing

    def _attend(self) -> None:
        """Everything but the step: models come and go; jobs leave, are held, enter, are late."""
        if not self._preloading and not self._serving:
            self._serving = True
            self._channel.send(Serving(self._slots))
        self._residents.unload_idle(self._waiting.wants)
        self._drop_cancelled()
        self._hold_and_release()
        if (ended := self._residents.advance()) is not None:
            self._on_loaded(ended)
        self._admit()
        # Only who found no slot can be late: where nobody may wait, a free slot is still to be had.
        self._waiting.expire()
        if self._beat.rows:
            # A step takes its time, the more so with a prompt in it: what is known goes out before it.
            self._hand_on()

    def _idle_seconds(self) -> float:
        """How long nothing will have to be done unless someone calls."""
        if self._residents.loading or any(resident.busy for resident in self._residents.all()):
            return 0.0
        if self._waiting.stale or (not self._preloading and not self._serving):
            return 0.0
        deadline = self._waiting.seconds_to_deadline()
        return IDLE_BEAT_SECONDS if deadline is None else min(IDLE_BEAT_SECONDS, deadline)

    def _hand_on(self) -> None:
        """Everything that the daemon doesn't have yet."""
        beat = self._beat
        for resident in self._residents.all():
            for row in resident.rows():
                self._take_output(row)
        self._pace.handed_on(time.monotonic())
        beat.active_bytes = self._memory.active_bytes
        beat.cache_bytes = mx.get_cache_memory()
        self._channel.send(beat)
        self._beat = Beat(
            steps=beat.steps,
            generated_tokens=beat.generated_tokens,
            cancels=beat.cancels,
            limit_bytes=self._memory.limit_bytes,
        )

    def _take_output(self, row: Row) -> None:
        if (output := row.take_output()) is not None:
            self._beat.rows.append(output)

    def _tell(self, job: Job, event: EngineEvent) -> None:
        self._beat.rows.append(JobEvent(job.serial, event))
        if not isinstance(event, Admitted):
            self._jobs.pop(job.serial, None)
            self._waiting.stale = True

    # --- jobs on their way into a batch --------------------------------------------------------------

    def _on_prepared(self, job: Job, prepared: Prepared) -> None:
        if job.cancelled:
            self._tell(job, Finished(StopCause.CANCELLED, 0))
        elif isinstance(prepared, Rejected):
            self._tell(job, prepared)
        else:
            self._waiting.add(prepared)

    def _refuse(self, prepared: PreparedJob, rejected: Rejected) -> None:
        self._tell(prepared.job, rejected)

    def _on_text(self, spec: ModelSpec, text: TextModel | str) -> None:
        if isinstance(text, str):
            self._residents.failed(spec.id, text)
            self._on_loaded(spec.id)
        else:
            self._residents.want(text)

    def _on_loaded(self, model: str) -> None:
        self._preloading.discard(model)
        if (slots := self._admission.slots()) != self._slots:
            self._slots = slots
            if self._serving:
                self._channel.send(Serving(slots))
        self._waiting.on_loaded(model)

    def _admit(self) -> None:
        self._waiting.stale = False
        while self._slots > sum(len(resident.rows()) for resident in self._residents.all()):
            entering = self._waiting.next_in()
            if entering is None:
                return
            resident, prepared = entering
            cached = resident.add(prepared)
            self._prompts.settle()
            self._tell(
                prepared.job,
                Admitted(
                    len(prepared.prompt),
                    cached,
                    prepared.limit,
                    prepared.reasoning_open,
                    call_enforced=prepared.grammar is not None and prepared.grammar.calls,
                    loosened=() if prepared.grammar is None else prepared.grammar.loosened,
                ),
            )

    # --- jobs in a batch -----------------------------------------------------------------------------

    def _count_cancel(self) -> None:
        self._beat.cancels += 1

    def _drop_cancelled(self) -> None:
        for prepared in self._waiting.take_cancelled():
            self._tell(prepared.job, Finished(StopCause.CANCELLED, 0))
        for resident in self._residents.all():
            for row in resident.rows():
                if row.job.cancelled:
                    resident.remove(row)
                    self._take_output(row)
                    self._tell(
                        row.job, Finished(StopCause.CANCELLED, row.generated, row.job.steps_after_cancel)
                    )

    def _hold_and_release(self) -> None:
        for resident in self._residents.all():
            for row in resident.rows():
                if row.job.paused and row.uid is not None:
                    resident.hold(row)
                elif not row.job.paused and row.uid is None:
                    end = resident.release(row)
                    self._beat.generated_tokens += 1
                    self._take_output(row)
                    if end is not None:
                        self._tell(row.job, end)

    def _step(self, resident: ResidentModel) -> bool:
        """One step of a model's batch; whether the daemon must have what came of it at once."""
        before = resident.rows()
        try:
            advanced = resident.step()
        except Exception:
            # What failed is MLX or a model, not a job: nothing of the batch can be trusted any more.
            traceback.print_exc()
            self._failed_steps += 1
            if self._failed_steps >= FAILED_STEPS_IN_A_ROW:
                os._exit(71)
            for row in resident.reset():
                self._take_output(row)
                self._tell(row.job, Failed("step_error", "the engine's step failed"))
            return True
        if advanced:
            self._failed_steps = 0
        self._beat.steps += 1
        self._beat.generated_tokens += len(advanced)
        for row in before:
            if row.job.cancelled and row.uid is not None:
                row.job.steps_after_cancel += 1
        urgent = False
        for row, end in advanced:
            urgent = urgent or row.watched or row.generated == 1
            if end is not None:
                self._take_output(row)
                self._tell(row.job, end)
                urgent = True
        return urgent
