"""The middle of the gateway: jobs on one side, providers on the other, one slot between them at a time.

    submit(job) ─▶ Dispatch.choose ─▶ offer ─▶ frames ─▶ Job ─▶ record ─▶ Delivery
                       └─ no slot free ─▶ FairQueue ─▶ pump (a slot is free again)

One event loop owns it; nothing here waits. A slot is promised in `_offer` and free again in `_release` alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from gateway_protocol.answer_check import AnswerBounds, AnswerCheck
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import (
    JobCancel,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobRejected,
    NotRoutableReason,
    ProviderState,
    Usage,
)
from provider.local_gateway.delivery import Outcome
from provider.local_gateway.dispatch import Dispatch
from provider.local_gateway.fair_queue import FairQueue
from provider.local_gateway.job_state import Waits
from provider.local_gateway.jobs import Attempt, Job, JobSpec
from provider.local_gateway.ledger import JobEntry, Ledger
from provider.local_gateway.meter import Meter
from provider.local_gateway.providers import Directory, ProviderRecord
from provider.local_gateway.settings import GatewaySettings

# A timer of the loop may come early by as much as its clock can't tell.
_CLOCK: Final = 0.01


class Broker:
    """`wall_ms`: milliseconds since the epoch, for the ledger."""

    def __init__(
        self, settings: GatewaySettings, directory: Directory, ledger: Ledger, wall_ms: Callable[[], int]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._directory = directory
        self._ledger = ledger
        self._wall_ms = wall_ms
        self._waits = Waits(settings.timers, settings.queue_seconds)
        self._queue: FairQueue[Job] = FairQueue(settings.queue_length)
        self._closing: ApiError | None = None
        self._wanted: dict[str, float] = {}
        self.dispatch = Dispatch()
        self.meter = Meter()
        self.jobs: set[Job] = set()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def closing(self) -> bool:
        return self._closing is not None

    def now(self) -> float:
        """The loop's time, in which everything here is measured."""
        return self._loop.time()

    # --- for buyers ----------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Start a job. Raises `ApiError` if no provider is ready for it or too many wait already."""
        if self._closing is not None:
            raise self._closing
        if self._ledger.full:
            raise ApiError(
                ErrorCode.NO_PROVIDER_AVAILABLE, "The gateway can't record jobs: its disk is full."
            )
        if len(self.jobs) >= self._settings.caps.jobs:
            raise ApiError(ErrorCode.PROVIDER_OVERLOADED, "This gateway serves as many requests as it may.")
        self._wanted[spec.model] = self._loop.time()
        if not self._ready_for(spec, ()):
            nobody = ApiError(ErrorCode.NO_PROVIDER_AVAILABLE, f"No provider of {spec.model} is ready.")
            raise self._saying_when(spec, nobody)
        provider_id = self._choose(spec, ())
        if provider_id is None and self._queue.full:
            raise ApiError(ErrorCode.PROVIDER_OVERLOADED, "Every provider is busy and the queue is full.")
        job = Job(spec, self, self._waits)
        self.jobs.add(job)
        if provider_id is None:
            self._queue.add(spec.line, job)
        else:
            self._offer(job, provider_id)
        return job

    def shut(self, error: ApiError) -> None:
        """Take no more jobs and end those that run."""
        self._closing = error
        for job in [*self.jobs]:
            job.abort(ApiError(error.code, error.message))

    # --- Desk: for jobs ------------------------------------------------------------------------

    def place(self, job: Job, refusal: ApiError | None) -> None:
        spec = job.spec
        if self._closing is not None or job.attempts >= self._settings.attempts:
            job.refuse(refusal or self._closing or self._lost())
            return
        provider_id = self._choose(spec, job.tried)
        if provider_id is not None:
            self._offer(job, provider_id)
        elif self._ready_for(spec, job.tried):
            self._queue.add(spec.line, job, first=True)
        else:
            job.refuse(refusal or self._lost())

    def unlined(self, job: Job) -> None:
        self._queue.remove(job.spec.line, job)

    def cancel(self, attempt: Attempt, reason: str) -> None:
        record = self._directory.records.get(attempt.provider_id)
        if record is None or record.attempts.get((attempt.job_id, attempt.number)) is not attempt:
            return
        attempt.dropped_at = self._loop.time()
        if record.link is None:
            # When it is back, `registered.resume` won't name the attempt, so its provider drops it.
            record.jobs.close(attempt.job_id, attempt.number)
            self.release(record, attempt)
        else:
            record.link.send(JobCancel(job_id=attempt.job_id, attempt=attempt.number, reason=reason))

    def blame(self, attempt: Attempt) -> None:
        now = self._loop.time()
        rests_until = self.dispatch.failed(attempt.provider_id, now, attempt.offered_at)
        if rests_until is not None:
            # Nothing else happens then that would put it back among the ready ones.
            self._loop.call_at(rests_until + _CLOCK, self.pump, attempt.provider_id)

    def ended(self, job: Job, outcome: Outcome) -> None:
        self.jobs.discard(job)
        if outcome.error is not None:
            self._saying_when(job.spec, outcome.error)
        attempt = job.current
        if attempt is None:
            job.delivery.end(outcome)  # nothing ran, or what ran is recorded with its own ending
            return
        recorded = self._ledger.record(
            self._entry(
                attempt,
                terminal="completed" if outcome.error is None else "failed",
                finish_reason=outcome.finish_reason,
                error=outcome.error.code if outcome.error else None,
                usage=outcome.usage,
                receipt=outcome.receipt,
            )
        )
        if recorded is None:
            job.delivery.end(outcome)
        else:
            # The buyer hears of the end only when a crash can't undo its record.
            recorded.add_done_callback(lambda done: self._recorded(job, outcome, done))

    def left_over(self, attempt: Attempt, frame: JobCompleted | JobFailed | JobRejected) -> None:
        """An attempt that nobody waits for has ended: what it cost is recorded all the same."""
        if isinstance(frame, JobRejected) or frame.usage is None:
            return
        recorded = self._ledger.record(
            self._entry(
                attempt,
                terminal="cancelled",
                finish_reason=None,
                error=None,
                usage=frame.usage,
                receipt=frame.receipt,
            )
        )
        if recorded is not None:
            recorded.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _entry(
        self,
        attempt: Attempt,
        *,
        terminal: str,
        finish_reason: str | None,
        error: str | None,
        usage: Usage | None,
        receipt: str | None,
    ) -> JobEntry:
        return JobEntry(
            job_id=attempt.job_id,
            attempt=attempt.number,
            key_id=attempt.spec.key_id,
            model=attempt.model,
            provider_id=attempt.provider_id,
            terminal=terminal,
            finish_reason=finish_reason,
            error=error,
            usage=usage,
            receipt=receipt,
            created_ms=attempt.spec.created * 1000,
            ended_ms=self._wall_ms(),
        )

    def _recorded(self, job: Job, outcome: Outcome, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            # What can't be recorded can't be charged, so it isn't delivered as a whole answer either.
            error = ApiError(ErrorCode.PROVIDER_ERROR, "The gateway could not record this answer.")
            outcome = Outcome(None, outcome.usage, outcome.receipt, error)
        job.delivery.end(outcome)

    # --- for providers -------------------------------------------------------------------------

    def pump(self, provider_id: str) -> None:
        """Hand waiting jobs to this provider while it has free slots."""
        now = self._loop.time()
        self.dispatch.refresh(provider_id, now)
        while len(self._queue):
            candidate = self.dispatch.get(provider_id)
            if candidate is None or not candidate.free or candidate.reasons(now):
                return
            job = self._queue.take(partial(self._fits, provider_id, candidate.models))
            if job is None:
                return
            self._offer(job, provider_id)

    def release(self, record: ProviderRecord, attempt: Attempt) -> None:
        """The attempt holds its slot no longer."""
        if record.attempts.pop((attempt.job_id, attempt.number), None) is None:
            return
        self.dispatch.release(record.provider_id, self._loop.time())
        self.pump(record.provider_id)

    def reasons(self, record: ProviderRecord) -> list[NotRoutableReason]:
        """What `heartbeat_ack` tells: why no jobs come, also while the provider is routable."""
        candidate = record.candidate
        found = candidate.reasons(self._loop.time())
        if not found and not candidate.free:
            found.append(NotRoutableReason.NO_FREE_SLOT)
        if not found and candidate.state is ProviderState.READY and not self._in_demand(candidate.models):
            found.append(NotRoutableReason.MODEL_NOT_IN_DEMAND)
        return found

    # --- inside --------------------------------------------------------------------------------

    def _in_demand(self, models: Collection[str]) -> bool:
        since = self._loop.time() - self._settings.demand_seconds
        return any(self._wanted.get(model, -math.inf) >= since for model in models)

    def _ready_for(self, spec: JobSpec, tried: Collection[str]) -> bool:
        ready = self.dispatch.ready(spec.model)
        if not tried and spec.only is None:
            return bool(ready)
        return any(p not in tried and (spec.only is None or p in spec.only) for p in ready)

    def _saying_when(self, spec: JobSpec, error: ApiError) -> ApiError:
        """A refusal for want of a provider says when one will be there, where that is known."""
        if error.retry_after_ms is None and error.http_status == 503 and not self._ready_for(spec, ()):
            now = self._loop.time()
            ends = self.dispatch.rest_ends(spec.model, now, spec.only)
            if ends is not None:
                error.retry_after_ms = round((ends - now + _CLOCK) * 1000)
        return error

    def _choose(self, spec: JobSpec, tried: Collection[str]) -> str | None:
        return self.dispatch.choose(
            spec.model, self._loop.time(), exclude=tried, only=spec.only, prefixes=spec.prefixes
        )

    @staticmethod
    def _fits(provider_id: str, models: Collection[str], job: Job) -> bool:
        spec = job.spec
        if spec.model not in models or provider_id in job.tried:
            return False
        return spec.only is None or provider_id in spec.only

    def _offer(self, job: Job, provider_id: str) -> None:
        record = self._directory.records[provider_id]
        offered = record.offered(job.spec.model)
        assert offered is not None, "dispatch knows a provider by the models it has registered"
        attempt = Attempt(
            job_id=job.spec.job_id,
            number=job.attempts + 1,
            provider_id=provider_id,
            model=job.spec.model,
            spec=job.spec,
            family=Family(offered.family),
            revision=offered.revision,
            signed_by=record.public_key,
            job=job,
            check=AnswerCheck(AnswerBounds.of(job.spec.request, offered)),
            offered_at=self._loop.time(),
        )
        record.attempts[attempt.job_id, attempt.number] = attempt
        self.dispatch.reserve(provider_id, self._loop.time())
        job.assigned(attempt)
        budget = self._settings.timers.first_content
        offer = JobOffer(
            job_id=attempt.job_id,
            attempt=attempt.number,
            request=job.spec.request.offer_request(),
            tenant=job.spec.tenant,
            first_content_budget_ms=None if budget is None else max(1, round(budget * 1000)),
            deadline_ms=max(1, round(job.remaining * 1000)),
        )
        assert record.link is not None, "dispatch knows connected providers only"
        if not record.link.send(offer):
            self.release(record, attempt)
            too_large = "The request is too large for the link to a provider."
            job.refuse(ApiError(ErrorCode.REQUEST_BODY_TOO_LARGE, too_large))

    @staticmethod
    def _lost() -> ApiError:
        return ApiError(
            ErrorCode.PROVIDER_DISCONNECTED, "The provider was lost while it served this request."
        )
