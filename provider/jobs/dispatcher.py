"""The jobs of this provider: from offers to terminal frames, over any number of links.

    link ─ offered, cancelled, acknowledged, linked, unlinked ─▶ JobDispatcher ─▶ JobRunner ─▶ engine
    link ◀─ post(control frame), wake() … next_frame() ◀─ outbox ◀─ pieces ◀─ pipeline ◀─ tokens

One task for each job. A job outlives the link it came by: what it has to say waits in the outbox until a
gateway has acknowledged it, or no longer asks for it. `ledger` is what each link's session is given; the
session decides what a frame means, this file does it. Each job ends in exactly one terminal frame (`state`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import structlog

from gateway_protocol.errors import ErrorCode
from gateway_protocol.limits import DRAIN_DEFAULT_MS, RESUME_WINDOW_MS
from gateway_protocol.messages import (
    Counters,
    Draining,
    JobOffer,
    ModelStatus,
    ProviderState,
)
from gateway_protocol.session import ProviderJobs
from provider.engine.base import Engine
from provider.jobs.admission import Admission
from provider.jobs.ends import Histogram, JobEnds
from provider.jobs.job import Job
from provider.jobs.outbox import Outbox
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import Signer
from provider.jobs.run import JobRunner
from provider.jobs.state import JobEvent, JobState

log = structlog.get_logger()

# After the last job has ended, so long may the gateway take to acknowledge what it was sent.
ACKNOWLEDGE_S = 5.0


class Lane(Protocol):
    """The sending side of a registered link. Nothing here blocks."""

    def post(self, message: Draining) -> None:
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
    """Everything a link does with jobs. `run` must be running; all other methods are called on its loop.

    `queue_length`: jobs taken beyond the engine's slots.
    """

    def __init__(self, *, engine: Engine, rules: AnswerRules, signer: Signer, queue_length: int = 64) -> None:
        self.ledger = ProviderJobs()
        self._engine = engine
        self._outbox = Outbox()
        self._admission = Admission(queue_length=queue_length)
        self._runner = JobRunner(
            engine=engine,
            ledger=self.ledger,
            outbox=self._outbox,
            admission=self._admission,
            rules=rules,
            signer=signer,
            wires=self,
        )
        self._jobs: dict[str, Job] = {}
        self._lane: Lane | None = None
        self._resume_window_ms = RESUME_WINDOW_MS
        self._giving_up: asyncio.TimerHandle | None = None
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._closing = asyncio.Event()

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hold the jobs' tasks and pass on the engine's changes until `close`."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            watch = tasks.create_task(self._watch_engine(), name="jobs-engine-watch")
            await self._closing.wait()
            watch.cancel()
            self._give_up()
        self._tasks = None

    def close(self) -> None:
        """Let `run` end: jobs still open are abandoned (`drain` first)."""
        self._closing.set()

    async def _watch_engine(self) -> None:
        while True:
            await self._engine.wait_change()
            self._changed()

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Take no more offers, let jobs finish for `seconds` or until `hurry`, fail the rest."""
        self._draining = self._admission.draining = True
        self._say_draining(int(seconds * 1000))
        await _first(seconds, self._idle, hurry)
        self._fail_all("The provider is shutting down.")
        if self._lane is not None:
            await _first(ACKNOWLEDGE_S, self._idle)

    def pause(self, reason: str) -> None:
        """Take no more offers; jobs under way go on. `reason` is told to the gateway and the owner."""
        self._admission.paused = reason
        self._changed()

    def resume(self) -> None:
        self._admission.paused = None
        self._changed()

    async def settle(self, seconds: float | None) -> None:
        """While paused: wait until no job is left; after `seconds` fail those that are (`None`: never)."""
        await _first(seconds, self._idle)
        self._fail_all("This provider's time to serve is over.")
        await _first(ACKNOWLEDGE_S, self._idle)

    def _fail_all(self, message: str) -> None:
        for job in list(self._jobs.values()):
            self._runner.refuse_or_fail(job, job.error(ErrorCode.PROVIDER_ERROR, message))

    # --- from the link -------------------------------------------------------------------------

    def linked(self, lane: Lane, resume_window_ms: int) -> None:
        """A gateway has registered us. `resumed` or `abandoned` follows for each job there is."""
        self._lane = lane
        self._resume_window_ms = resume_window_ms
        self._admission.draining = self._draining
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
        self._outbox.rewind()

    def unlinked(self) -> None:
        """The link is gone; jobs go on until the gateway can't be waiting for them any more."""
        self._lane = None
        if self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(self._resume_window_ms / 1000, self._give_up)

    def offered(self, offer: JobOffer) -> None:
        """A job that the ledger has just opened."""
        if self._tasks is None:
            raise RuntimeError("`run` isn't running")
        job = Job(offer, asyncio.get_running_loop().time())
        self._jobs[job.job_id] = job
        self._idle.clear()
        self._outbox.open(job.job_id, job.attempt, job.seal)
        self._tasks.create_task(self._serve(job), name=f"job-{job.job_id}")
        self._changed()

    def cancelled(self, job_id: str, reason: str) -> None:
        """Stop it in the queue, in prefill or in decode; it still ends in its terminal frame."""
        self._runner.cancel(self._jobs[job_id], reason)
        self._changed()

    def acknowledged(self, job_id: str, attempt: int, seq: int) -> None:
        """The gateway has everything up to `seq`; with the terminal frame among it the job is over."""
        over, released = self._outbox.acknowledge(job_id, attempt, seq)
        self._go_on(released)
        if over:
            job = self._jobs[job_id]
            job.advance(JobEvent.ACKNOWLEDGE)
            self._forget(job)

    def resumed(self, job_id: str, attempt: int, from_seq: int) -> None:
        """The gateway waits for this job's frames from `from_seq` on."""
        if not self._outbox.resume(job_id, attempt, from_seq):
            raise RuntimeError("the ledger and the outbox disagree about a job")
        # What the gateway has already is forgotten with it: there may be nothing left to acknowledge.
        self._go_on(self._outbox.released())
        self.wake()

    def abandoned(self, job_id: str, reason: str) -> None:
        """Nobody waits for this job; the ledger has closed it."""
        job = self._jobs[job_id]
        log.info("job_abandoned", job_id=job_id, attempt=job.attempt, reason=reason)
        self._runner.abandon(job)
        self._forget(job)
        # Its room is the others' now, who may wait for just that.
        self._go_on(self._outbox.released())
        self._changed()

    def drain_requested(self, deadline_ms: int | None) -> None:
        """The gateway is about to go: nothing new on this link; the next one starts afresh."""
        self._admission.draining = True
        self._say_draining(DRAIN_DEFAULT_MS if deadline_ms is None else deadline_ms)

    def next_frame(self) -> str | None:
        """The next data frame for the wire; `None`: nothing until the lane is woken."""
        return self._outbox.next_frame()

    # --- to the link ---------------------------------------------------------------------------

    def wake(self) -> None:
        if self._lane is not None:
            self._lane.wake()

    def _changed(self) -> None:
        if self._lane is not None:
            self._lane.changed()

    def _say_draining(self, deadline_ms: int) -> None:
        if self._lane is not None:
            self._lane.post(Draining(in_flight=len(self._jobs), deadline_ms=deadline_ms))
        self._changed()

    # --- registry ------------------------------------------------------------------------------

    async def _serve(self, job: Job) -> None:
        await self._runner.serve(job)
        self._changed()

    def _give_up(self) -> None:
        self._giving_up = None
        for job in self.ledger:
            self.ledger.close(job)
            self.abandoned(job.job_id, "link_lost")

    def _go_on(self, released: list[str]) -> None:
        for job_id in released:
            generation = self._jobs[job_id].generation
            if generation is not None:
                generation.pause(False)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.job_id]
        if not self._jobs:
            self._idle.set()

    # --- facts ---------------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        return self._runner.tally.counters()

    @property
    def ends(self) -> JobEnds:
        """How jobs ended, each once."""
        return self._runner.ends

    @property
    def token_gaps(self) -> Histogram:
        """Seconds between two tokens of one answer."""
        return self._runner.token_gaps

    @property
    def rejected(self) -> int:
        return self._runner.tally.rejected

    @property
    def outbox_bytes(self) -> int:
        return self._outbox.bytes

    def states(self) -> dict[str, int]:
        """How many jobs are in each state, for the status document."""
        counts = dict.fromkeys((state.value for state in JobState if state is not JobState.ENDED), 0)
        for job in self._jobs.values():
            counts[job.state.value] += 1
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
            models=tuple(ModelStatus(id=name, state=status.offered(name)) for name in status.models),
        )


async def _first(seconds: float | None, *events: asyncio.Event) -> None:
    """Wait until one of the events is set, at most `seconds`."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
