"""The run of one job: check it, hand it to the engine, turn what comes into an answer, end it once.

The engine is asked to stop as soon as the answer is decided; the job's frames don't wait for that, its slot
does. Nothing here waits for the link either: pieces go to the outbox, which outlives every link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from gateway_protocol.codec import encode
from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.limits import FIRST_CONTENT_BASE_MS, FIRST_CONTENT_PER_TOKEN_MS
from gateway_protocol.messages import (
    FinishReason,
    JobAccepted,
    JobError,
    JobFailed,
    JobRejected,
)
from gateway_protocol.openai_types import CheckedRequest
from gateway_protocol.receipts import request_sha256
from gateway_protocol.session import ProviderJobs
from gateway_protocol.session.job_frames import JobFrame
from provider.engine.base import (
    Admitted,
    Engine,
    Failed,
    Finished,
    Rejected,
    StopCause,
    Token,
    Tokens,
)
from provider.jobs import plan as planning
from provider.jobs.admission import Admission, Readiness
from provider.jobs.ends import TOKEN_BOUNDS, EndKind, Histogram, JobEnds, Tally
from provider.jobs.job import Job
from provider.jobs.outbox import Outbox
from provider.jobs.pieces import Piece
from provider.jobs.pipeline import JobPipeline
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import JobProof, Signer, Subject
from provider.jobs.state import JobEvent, JobState
from provider.toolcalls import OutputInterpreter

log = structlog.get_logger()

# From this size on a request takes so long to check that the link's own frames must not wait for it.
CHECK_IN_THREAD_CHARS = 128 * 1024
# From so many jobs on, and with so many tokens waiting (if the other jobs have as many as this one), the loop
# is behind: then fewer and larger chunks, else one for each token.
BEHIND_JOBS = 12
BEHIND_TOKENS = 64


class Wires(Protocol):
    """`wake`: the outbox has something new for the link, if one stands."""

    def wake(self) -> None: ...


class JobRunner:
    """What all runs share. `serve` is one job's task; the other methods may end it from outside."""

    def __init__(
        self,
        *,
        engine: Engine,
        ledger: ProviderJobs,
        outbox: Outbox,
        admission: Admission,
        rules: AnswerRules,
        signer: Signer,
        wires: Wires,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._outbox = outbox
        self._admission = admission
        self._rules = rules
        self._signer = signer
        self._wires = wires
        self.tally = Tally()
        self.ends = JobEnds()
        self.token_gaps = Histogram(TOKEN_BOUNDS)

    async def serve(self, job: Job) -> None:
        """The whole run, until the engine is done with the job. Leaves the job decided, whatever happens."""
        self._arm(job, job.offer.deadline_ms, "The job's deadline has passed.")
        try:
            await self._submit(job)
            if job.generation is not None:
                await self._pump(job)
        except ApiError as error:
            self.refuse_or_fail(job, error)
        except Exception:
            log.exception("job_crashed", job_id=job.job_id, attempt=job.attempt)
            message = "The provider failed while it worked on this job."
            self.refuse_or_fail(job, job.error(ErrorCode.PROVIDER_ERROR, message))
        finally:
            job.stop_timers()
            if job.generation is not None:
                job.generation.cancel()
            self._admission.release(job.key)

    # --- to the engine -------------------------------------------------------------------------

    async def _submit(self, job: Job) -> None:
        request, request_hash = await self._checked(job)
        if job.decided:
            return
        info = self._engine.models().get(request.model)
        if info is None:
            message = "This provider doesn't have that model."
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
        job.plan = planning.plan(request, info, self._rules)
        status = self._engine.status()
        readiness = Readiness(status.ready, status.slots_total, status.models.get(info.id))
        refusal = self._admission.consider(job.key, readiness)
        if refusal is not None:
            raise refusal
        if request.unknown_fields:
            log.info("unknown_fields_ignored", job_id=job.job_id, fields=request.unknown_fields)
        subject = Subject(
            job.job_id, job.attempt, info.id, info.revision, request_hash, buffered=job.plan.buffered
        )
        job.proof = JobProof(subject, self._signer, self._frame)
        job.generation = self._engine.submit(job.plan.generation(job.key, job.offer.tenant))
        job.advance(JobEvent.SUBMIT)

    async def _checked(self, job: Job) -> tuple[CheckedRequest, str]:
        body = job.offer.request

        def check() -> tuple[CheckedRequest, str]:
            request = planning.check(body, self._rules)
            return request, request_sha256(request.body)

        if planning.request_chars(body) < CHECK_IN_THREAD_CHARS:
            return check()
        return await asyncio.to_thread(check)

    async def _pump(self, job: Job) -> None:
        assert job.generation is not None
        events = job.generation.events
        while True:
            for event in await events():
                if isinstance(event, Tokens):
                    self._tokens(job, event.tokens, together=event.together)
                elif isinstance(event, Admitted):
                    self._admitted(job, event)
                else:
                    self._engine_ended(job, event)
                    return

    # --- from the engine -----------------------------------------------------------------------

    def _admitted(self, job: Job, admitted: Admitted) -> None:
        if job.decided:
            return
        assert job.plan is not None
        job.admitted = admitted
        job.advance(JobEvent.ADMIT)
        request = job.plan.request
        policy = job.plan.call_policy(admitted)
        if admitted.loosened:
            log.info("schemas_loosened", job_id=job.job_id, schemas=admitted.loosened)
        job.pipeline = JobPipeline(
            OutputInterpreter(policy),
            stop=request.stop,
            include_reasoning=request.include_reasoning,
            logprobs=request.logprobs,
            tools=policy.tools,
        )
        budget_ms = job.offer.first_content_budget_ms
        if budget_ms is None:
            uncached = max(0, admitted.prompt_tokens - admitted.cached_tokens)
            budget_ms = FIRST_CONTENT_BASE_MS + FIRST_CONTENT_PER_TOKEN_MS * uncached
        job.first_token_timer = self._arm(job, budget_ms, "The model took too long to begin its answer.")
        accepted = JobAccepted(
            job_id=job.job_id,
            attempt=job.attempt,
            prompt_tokens=admitted.prompt_tokens,
            cached_tokens=admitted.cached_tokens,
        )
        self._outbox.accept(job.job_id, self._frame(accepted))
        self._wires.wake()

    def _tokens(self, job: Job, tokens: Sequence[Token], *, together: bool) -> None:
        if job.decided:
            return
        assert job.pipeline is not None
        now = asyncio.get_running_loop().time()
        if job.first_token_at is None:
            job.first_token(now)
        else:
            self.token_gaps.add(now - job.last_token_at, len(tokens))
        job.last_token_at = now
        jobs = self._admission.promised
        behind = jobs >= BEHIND_JOBS and jobs * len(tokens) >= BEHIND_TOKENS
        self._say(job, job.pipeline.feed(tokens, joined=together or behind))
        if job.pipeline.done:
            self._conclude(job)
        elif job.pipeline.stop_wanted and job.generation is not None:
            job.generation.cancel()

    def _engine_ended(self, job: Job, event: Finished | Failed | Rejected) -> None:
        if job.decided:
            return
        stopped = job.pipeline is not None and job.pipeline.stop_wanted
        if stopped or (isinstance(event, Finished) and event.cause is not StopCause.CANCELLED):
            assert job.pipeline is not None
            cut = not stopped and isinstance(event, Finished) and event.cause is StopCause.LENGTH
            self._say(job, job.pipeline.finish("length" if cut else "stop"))
            self._conclude(job)
        elif isinstance(event, Finished):
            raise job.error(ErrorCode.PROVIDER_ERROR, "The engine stopped this job by itself.")
        elif isinstance(event, Failed):
            log.warning("engine_failed_job", job_id=job.job_id, attempt=job.attempt, cause=event.cause)
            error = job.error(event.code, event.message)
            error.retry_after_ms = event.retry_after_ms
            raise error
        else:
            raise ApiError(event.code, event.message, param=event.param, retry_after_ms=event.retry_after_ms)

    def _say(self, job: Job, pieces: list[Piece]) -> None:
        if not pieces:
            return
        if self._outbox.append(job.job_id, pieces) and job.generation is not None:
            job.generation.pause(True)
        self._wires.wake()

    # --- ends ----------------------------------------------------------------------------------

    def _conclude(self, job: Job) -> None:
        """The answer is whole, or failed by its own doing; the engine need not go on."""
        assert job.pipeline is not None
        assert job.generation is not None
        job.generation.cancel()
        if job.pipeline.error is not None:
            self._fail(job, job.pipeline.error)
        else:
            assert job.pipeline.finish_reason is not None
            self._complete(job, job.pipeline.finish_reason)

    def _complete(self, job: Job, finish_reason: FinishReason) -> None:
        job.advance(JobEvent.FINISH)
        job.stop_timers()
        proof, usage = job.proof, job.usage()
        assert proof is not None
        assert usage is not None
        self._outbox.finish(job.job_id, lambda chunks: proof.completed(chunks, finish_reason, usage))
        if job.pipeline is not None and job.pipeline.misfits:
            log.warning("arguments_dont_fit", job_id=job.job_id, functions=job.pipeline.misfits)
        self._count(job, EndKind.COMPLETED, finish_reason=finish_reason)
        self._wires.wake()

    def refuse_or_fail(self, job: Job, error: ApiError) -> None:
        """End a job with an error: rejected while nothing was accepted, failed after. Once at most."""
        if job.decided:
            return
        if job.state is JobState.RUNNING:
            self._fail(job, error)
        else:
            self._reject(job, error)

    def cancel(self, job: Job, reason: str) -> None:
        """The gateway wants no more of it, in the queue, in prefill or in decode."""
        if job.decided:
            return
        error = job.error(ErrorCode.PROVIDER_ERROR, f"The job was cancelled: {reason}", fault=Fault.BUYER)
        self._fail(job, error, cancelled=True)

    def abandon(self, job: Job) -> None:
        """No gateway asks for this job any more: stop it, say nothing."""
        if job.over:
            return
        if not job.decided:
            self._count(job, EndKind.CANCELLED)
        job.advance(JobEvent.ABANDON)
        self._stop(job)
        self._outbox.drop(job.job_id)

    def _fail(self, job: Job, error: ApiError, *, cancelled: bool = False) -> None:
        job.advance(JobEvent.FINISH)
        self._stop(job)
        proof, usage = job.proof, job.usage()
        if proof is None:
            frame = JobFailed(job_id=job.job_id, attempt=job.attempt, seq=0, error=JobError.of(error))
            self._outbox.finish(job.job_id, lambda chunks: self._frame(frame))
        else:
            self._outbox.finish(
                job.job_id,
                lambda chunks: proof.failed(chunks, error, usage, cancelled=cancelled),
                discard=cancelled,
            )
        if cancelled:
            self._count(job, EndKind.CANCELLED)
        else:
            log.info("job_failed", job_id=job.job_id, attempt=job.attempt, code=error.code.value)
            self._count(job, EndKind.FAILED, code=error.code)
        self._wires.wake()

    def _reject(self, job: Job, error: ApiError) -> None:
        job.advance(JobEvent.REJECT)
        self._stop(job)
        frame = JobRejected(
            job_id=job.job_id,
            attempt=job.attempt,
            error=JobError.of(error),
            retry_after_ms=error.retry_after_ms,
        )
        self._outbox.finish(job.job_id, lambda chunks: self._frame(frame))
        self._count(job, EndKind.REJECTED, code=error.code)
        log.info("job_rejected", job_id=job.job_id, attempt=job.attempt, code=error.code.value)
        self._wires.wake()

    def _frame(self, frame: JobFrame) -> str:
        self._ledger.made(frame)
        return encode(frame)

    def _stop(self, job: Job) -> None:
        job.stop_timers()
        if job.generation is not None:
            job.generation.cancel()

    def _count(
        self,
        job: Job,
        kind: EndKind,
        *,
        finish_reason: FinishReason | None = None,
        code: ErrorCode | None = None,
    ) -> None:
        end = job.end(kind, asyncio.get_running_loop().time(), finish_reason=finish_reason, code=code)
        self.tally.add(end)
        self.ends.add(end)

    def _arm(self, job: Job, delay_ms: int, message: str) -> asyncio.TimerHandle:
        def expire() -> None:
            self.refuse_or_fail(job, job.error(ErrorCode.PROVIDER_TIMEOUT, message))

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, expire)
        job.timers.append(timer)
        return timer
