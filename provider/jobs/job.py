"""One job as the dispatcher holds it: its state, its counts, its proof, its timers."""

from __future__ import annotations

import asyncio

from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.messages import FinishReason, JobOffer, Usage
from provider.engine.base import Admitted, Generation
from provider.jobs.ends import EndKind, JobEnd
from provider.jobs.pieces import Piece
from provider.jobs.pipeline import JobPipeline
from provider.jobs.plan import Plan
from provider.jobs.proof import JobProof
from provider.jobs.state import JobEvent, JobState, transition


class Job:
    """Mutable, owned by the dispatcher's loop. What is `None` was not reached yet. Times are the loop's."""

    def __init__(self, offer: JobOffer, now: float) -> None:
        self.offer = offer
        self.offered_at = now
        self.first_token_at: float | None = None
        self.last_token_at = now
        self.job_id = offer.job_id
        self.attempt = offer.attempt
        self.state = JobState.OFFERED
        self.plan: Plan | None = None
        self.proof: JobProof | None = None
        self.generation: Generation | None = None
        self.admitted: Admitted | None = None
        self.pipeline: JobPipeline | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self.first_token_timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> str:
        """Unique for each attempt."""
        return f"{self.job_id}#{self.attempt}"

    @property
    def over(self) -> bool:
        return self.state is JobState.ENDED

    @property
    def decided(self) -> bool:
        """Its end is known, or nobody asks for it: nothing more is to be said."""
        return self.state in (JobState.SETTLING, JobState.ENDED)

    def advance(self, event: JobEvent) -> None:
        self.state = transition(self.state, event)

    def seal(self, seq: int, piece: Piece) -> str:
        assert self.proof is not None, "a piece exists only after the job was planned"
        return self.proof.seal(seq, piece)

    def usage(self) -> Usage | None:
        """Tokens so far; `None` before the prompt was counted."""
        if self.admitted is None:
            return None
        pipeline = self.pipeline
        return Usage(
            prompt_tokens=self.admitted.prompt_tokens,
            completion_tokens=0 if pipeline is None else pipeline.completion_tokens,
            cached_tokens=self.admitted.cached_tokens,
            reasoning_tokens=0 if pipeline is None else pipeline.reasoning_tokens,
        )

    def end(
        self, kind: EndKind, now: float, *, finish_reason: FinishReason | None, code: ErrorCode | None
    ) -> JobEnd:
        """What is told of this job when it is over."""
        usage = self.usage()
        counts = usage or Usage(prompt_tokens=0, completion_tokens=0)
        return JobEnd(
            job_id=self.job_id,
            attempt=self.attempt,
            model=None if self.plan is None else self.plan.request.model,
            kind=kind,
            finish_reason=finish_reason,
            code=code,
            admitted=usage is not None,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            completion_tokens=counts.completion_tokens,
            reasoning_tokens=counts.reasoning_tokens,
            duration_s=now - self.offered_at,
            ttft_s=None if self.first_token_at is None else self.first_token_at - self.offered_at,
        )

    @property
    def inference_ran(self) -> bool:
        return self.pipeline is not None and self.pipeline.completion_tokens > 0

    def error(self, code: ErrorCode, message: str, *, fault: Fault | None = None) -> ApiError:
        """An error of this job as it stands now."""
        return ApiError(code, message, inference_ran=self.inference_ran, fault=fault)

    def stop_timers(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self.first_token_timer = None

    def first_token(self, now: float) -> None:
        """The model speaks: the first-content budget is kept."""
        self.first_token_at = now
        if self.first_token_timer is not None:
            self.first_token_timer.cancel()
            self.first_token_timer = None
