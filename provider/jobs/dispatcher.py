"""The jobs of this provider: from offers to terminal frames, over any number of links.

    link ─ offered, cancelled, acknowledged, linked, unlinked ─▶ JobDispatcher ─▶ JobRunner ─▶ engine
    link ◀─ post(control frame), wake() … next_frame() ◀─ outbox ◀─ pieces ◀─ pipeline ◀─ tokens

One task for each job. A job outlives the link it came by: what it has to say waits in the outbox until a
gateway has acknowledged it, or no longer asks for it. Each job ends in exactly one terminal frame (`state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import RESUME_WINDOW_MS
from gateway_protocol.messages import (
    ActiveJob,
    Counters,
    Draining,
    JobAck,
    JobCancel,
    JobError,
    JobFailed,
    JobOffer,
    JobRejected,
    ModelState,
    ModelStatus,
    Nack,
    NackCode,
    ProviderState,
    ResumeJob,
    Wire,
)
from provider.engine.base import Engine
from provider.jobs.admission import Admission
from provider.jobs.job import Job
from provider.jobs.outbox import Outbox
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import Signer
from provider.jobs.run import JobRunner
from provider.jobs.state import JobEvent, JobState

log = structlog.get_logger()

# After the last job has ended, so long may the gateway take to acknowledge what it was sent.
ACKNOWLEDGE_S = 5.0
_NO_REASON = "The job was stopped by its provider."


class Lane(Protocol):
    """The sending side of a registered link. Nothing here blocks."""

    def post(self, message: Wire) -> None:
        """Send a control frame, ahead of all data."""
        ...

    def wake(self) -> None:
        """`JobDispatcher.next_frame` has something."""
        ...

    def changed(self) -> None:
        """The facts of a heartbeat have changed."""
        ...


@dataclass(frozen=True, slots=True)
class Presence:
    """What a heartbeat says of the jobs. `queued`: taken, not admitted by the engine yet."""

    state: ProviderState
    reason: str | None
    slots_total: int
    slots_free: int
    queued: int
    models: tuple[ModelStatus, ...]


class JobDispatcher:
    """Everything a link does with jobs. `run` must be running; all other methods are called on its loop."""

    def __init__(self, *, engine: Engine, rules: AnswerRules, signer: Signer, queue_length: int = 64) -> None:
        self._engine = engine
        self._outbox = Outbox()
        self._admission = Admission(queue_length=queue_length)
        self._runner = JobRunner(
            engine=engine,
            outbox=self._outbox,
            admission=self._admission,
            rules=rules,
            signer=signer,
            wires=self,
        )
        self._jobs: dict[str, Job] = {}
        self._lane: Lane | None = None
        self._unsent_rejections: dict[str, JobRejected] = {}
        self._resume_window_ms = RESUME_WINDOW_MS
        self._given_up: asyncio.TimerHandle | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._closing = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold the jobs' tasks and pass on the engine's changes until `aclose`."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watch = tasks.create_task(self._watch_engine(), name="jobs-engine-watch")
            await self._closing.wait()
            watch.cancel()
            for job in list(self._jobs.values()):
                self._runner.abandon(job)
        self._tasks = None

    async def aclose(self) -> None:
        """Let `run` end: jobs still open are abandoned (`drain` first)."""
        self._closing.set()

    async def _watch_engine(self) -> None:
        while True:
            await self._engine.wait_change()
            self._changed()

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Take no more offers, let jobs finish for `seconds` or until `hurry`, fail the rest."""
        self._draining = self._admission.draining = True
        self.post(Draining(in_flight=len(self._jobs), deadline_ms=int(seconds * 1000)))
        self._changed()
        await _first(seconds, self._idle, hurry)
        for job in list(self._jobs.values()):
            error = job.error(ErrorCode.PROVIDER_ERROR, "The provider is shutting down.")
            self._runner.refuse_or_fail(job, error)
            self._forget_if_over(job)
        if self._lane is not None:
            await _first(ACKNOWLEDGE_S, self._idle)

    def pause(self, reason: str) -> None:
        """Take no more offers; jobs under way go on. `reason` is told to the gateway and the owner."""
        self._admission.paused = reason
        self._changed()

    def resume(self) -> None:
        self._admission.paused = None
        self._changed()

    # --- from the link -------------------------------------------------------------------------

    def active_jobs(self) -> tuple[ActiveJob, ...]:
        """What `register` says is still here."""
        return tuple(
            ActiveJob(job_id=job.job_id, attempt=job.attempt, next_seq=job.next_seq)
            for job in self._outbox.jobs()
        )

    def linked(self, lane: Lane, resume: Sequence[ResumeJob], resume_window_ms: int) -> None:
        """A gateway has registered us: replay what it asks for, stop what it doesn't."""
        self._lane = lane
        self._resume_window_ms = resume_window_ms
        self._admission.draining = self._draining
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None
        self._outbox.rewind()
        wanted = {item.job_id: item for item in resume}
        for job in list(self._jobs.values()):
            item = wanted.pop(job.job_id, None)
            if item is None:
                self._abandon(job, "not_asked_for")
            elif not self._outbox.resume(job.job_id, item.attempt, item.from_seq):
                self._abandon(job, "not_resumable")
                self._disown(item)
        for item in wanted.values():
            self._disown(item)
        self._unsent_rejections.clear()
        lane.wake()

    def unlinked(self) -> None:
        """The link is gone; jobs go on until the gateway can't be waiting for them any more."""
        self._lane = None
        if self._jobs and self._given_up is None:
            loop = asyncio.get_running_loop()
            self._given_up = loop.call_later(self._resume_window_ms / 1000, self._give_up)

    def offered(self, offer: JobOffer) -> None:
        """A job: taken, rejected, or known already (a repeated offer changes nothing)."""
        known = self._jobs.get(offer.job_id)
        if known is not None:
            if offer.attempt == known.attempt:
                return
            if offer.attempt < known.attempt:
                self._nack("job_offer", NackCode.STALE_ATTEMPT)
                return
            self._abandon(known, "newer_attempt")
        if self._tasks is None:
            raise RuntimeError("`run` isn't running")
        job = Job(offer)
        self._jobs[job.job_id] = job
        self._idle.clear()
        self._outbox.open(job.job_id, job.attempt, job.seal)
        job.task = self._tasks.create_task(self._serve(job), name=f"job-{job.job_id}")
        self._changed()

    def cancelled(self, cancel: JobCancel) -> None:
        job = self._jobs.get(cancel.job_id)
        if job is None or job.attempt != cancel.attempt:
            self._nack("job_cancel", NackCode.UNKNOWN_JOB)
            return
        self._runner.cancel(job, cancel.reason)
        self._changed()

    def acknowledged(self, ack: JobAck) -> None:
        over, released = self._outbox.acknowledge(ack.job_id, ack.attempt, ack.seq)
        for job_id in released:
            generation = self._jobs[job_id].generation
            if generation is not None:
                generation.pause(False)
        if over:
            job = self._jobs[ack.job_id]
            job.advance(JobEvent.ACKNOWLEDGE)
            self._forget_if_over(job)

    def asked_to_drain(self) -> None:
        """The gateway is about to restart: nothing new on this link; the next one starts afresh."""
        self._admission.draining = True
        self.post(Draining(in_flight=len(self._jobs), deadline_ms=0))
        self._changed()

    def next_frame(self) -> str | None:
        """The next data frame for the wire; `None`: nothing until the lane is woken."""
        return self._outbox.next_frame()

    # --- to the link ---------------------------------------------------------------------------

    def post(self, message: Wire) -> None:
        """Send a control frame on the link that stands; a rejection is kept for the next one."""
        if self._lane is not None:
            self._lane.post(message)
        elif isinstance(message, JobRejected):
            self._unsent_rejections[message.job_id] = message

    def wake(self) -> None:
        if self._lane is not None:
            self._lane.wake()

    def _changed(self) -> None:
        if self._lane is not None:
            self._lane.changed()

    def _nack(self, in_reply_to: str, code: NackCode) -> None:
        self.post(Nack(in_reply_to=in_reply_to, code=code, message=f"{in_reply_to}: {code.value}"))

    def _disown(self, item: ResumeJob) -> None:
        """The gateway waits for a job that isn't here (any more): tell it not to."""
        rejected = self._unsent_rejections.get(item.job_id)
        if rejected is not None and rejected.attempt == item.attempt:
            self.post(rejected)
            return
        error = ApiError(ErrorCode.PROVIDER_ERROR, "The provider no longer has this job.")
        self.post(
            JobFailed(job_id=item.job_id, attempt=item.attempt, seq=item.from_seq, error=JobError.of(error))
        )

    # --- registry ------------------------------------------------------------------------------

    async def _serve(self, job: Job) -> None:
        await self._runner.serve(job)
        self._forget_if_over(job)
        self._changed()

    def _give_up(self) -> None:
        self._given_up = None
        for job in list(self._jobs.values()):
            self._abandon(job, "link_lost")

    def _abandon(self, job: Job, why: str) -> None:
        log.info("job_abandoned", job_id=job.job_id, attempt=job.attempt, why=why)
        self._runner.abandon(job)
        self._forget_if_over(job)

    def _forget_if_over(self, job: Job) -> None:
        if job.over and self._jobs.get(job.job_id) is job:
            del self._jobs[job.job_id]
            if not self._jobs:
                self._idle.set()

    # --- facts ---------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._runner.tally.counters()

    @property
    def rejected(self) -> int:
        return self._runner.tally.rejected

    @property
    def open_jobs(self) -> int:
        """Jobs whose end isn't decided yet."""
        return sum(not job.decided for job in self._jobs.values())

    @property
    def outbox_bytes(self) -> int:
        return self._outbox.bytes

    def states(self) -> dict[str, int]:
        """How many jobs are in each state, for the status document."""
        counts: dict[str, int] = {}
        for job in self._jobs.values():
            counts[job.state.value] = counts.get(job.state.value, 0) + 1
        return counts

    def presence(self) -> Presence:
        """A decided job holds its slot for one more step at most, so it counts as free already."""
        status = self._engine.status()
        undecided = [job for job in self._jobs.values() if not job.decided]
        slots_free = max(0, status.slots_total - len(undecided))
        state = self._admission.state(ready=status.ready, slots_free=slots_free)
        reason = self._admission.paused if state is ProviderState.PAUSED else None
        if state is ProviderState.DEGRADED:
            reason = status.detail
        return Presence(
            state=state,
            reason=reason,
            slots_total=status.slots_total,
            slots_free=slots_free,
            queued=sum(job.state in (JobState.OFFERED, JobState.QUEUED) for job in undecided),
            models=tuple(
                ModelStatus(id=name, state=ModelState(state)) for name, state in status.models.items()
            ),
        )


async def _first(seconds: float, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
