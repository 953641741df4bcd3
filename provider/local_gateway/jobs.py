"""One buyer's job at the gateway: the table of `job_state` with its timers, its attempts, its delivery.

    frames, link changes ─▶ Job ─▶ Delivery ─▶ buyer          Job ─▶ Desk (who gets it next, what is recorded)

Nothing here waits: every method takes what happened and returns. Each attempt belongs to one provider and
holds one of its slots until its terminal frame, also after the job has moved on; such an attempt has no job
any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from gateway_protocol.answer import AnswerCollector
from gateway_protocol.answer_check import AnswerCheck
from gateway_protocol.errors import ApiError, ErrorCode, Fault
from gateway_protocol.families import Family
from gateway_protocol.messages import Delta, JobAccepted, JobChunk, JobCompleted, JobFailed
from gateway_protocol.openai_types import CheckedRequest
from provider.local_gateway.delivery import Delivery, Item, Outcome
from provider.local_gateway.job_state import AWAY, Move, Phase, Waits, transition


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job is. `line`: whose turn in the queue it takes. `prefixes`: of the conversation, longest
    first.

    `only`: the providers that may have it, `None` for all of the model. `request_sha256`: as the receipt must
    say.
    """

    job_id: str
    request: CheckedRequest
    request_sha256: str
    tenant: str | None
    key_id: str
    line: str
    created: int
    only: frozenset[str] | None = None
    prefixes: tuple[bytes, ...] = ()

    @property
    def model(self) -> str:
        return self.request.model


@dataclass(slots=True, eq=False)
class Attempt:
    """One offer to one provider. `job`: who waits for it, `None` once nobody does.

    `family`, `revision`: the model's, as registered when the job was offered; `signed_by`: the provider's key
    then. `collector`: the answer so far; `check`: what it is held to.
    """

    job_id: str
    number: int
    provider_id: str
    model: str
    spec: JobSpec
    family: Family
    revision: str | None
    signed_by: str
    job: Job | None
    check: AnswerCheck
    collector: AnswerCollector = field(default_factory=AnswerCollector)
    accepted: bool = False
    offered_at: float = 0.0
    dropped_at: float | None = None


class Desk(Protocol):
    """What a job asks of the gateway around it."""

    def place(self, job: Job, refusal: ApiError | None) -> None:
        """Find the job its next provider, queue it, or end it: `refusal` is what its last attempt came to."""

    def cancel(self, attempt: Attempt, reason: str) -> None:
        """Tell the provider to stop; its slot is free with its terminal frame."""

    def blame(self, attempt: Attempt) -> None:
        """The provider failed this attempt."""

    def unlined(self, job: Job) -> None:
        """The job left the queue by itself."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """The job is over: record it, then let the buyer know (`job.delivery.end`)."""


class Job:
    """A job from the buyer's request to its end."""

    def __init__(self, spec: JobSpec, desk: Desk, waits: Waits) -> None:
        self._loop = asyncio.get_running_loop()
        self._desk = desk
        self._waits = waits
        self._timer: asyncio.TimerHandle | None = None
        self._created = self._since = self._loop.time()
        self._first_content_at: float | None = None
        self._role_sent = False
        self.spec = spec
        self.phase = Phase.QUEUED
        self.delivery = Delivery()
        self.attempts = 0
        self.current: Attempt | None = None
        self.tried: set[str] = set()
        self.inference_ran = False
        self._arm()

    @property
    def remaining(self) -> float:
        """Seconds to the job's deadline."""
        return max(0.001, self._created + self._waits.timers.job_deadline - self._loop.time())

    # --- what providers do ---------------------------------------------------------------------

    def assigned(self, attempt: Attempt) -> None:
        self.current = attempt
        self.attempts = attempt.number
        self._move(Move.ASSIGNED)

    def accepted(self, frame: JobAccepted) -> None:
        if self.phase is not Phase.OFFERED:
            return  # a replay's repetition
        budget = self._waits.first_content_budget(frame.prompt_tokens, frame.cached_tokens)
        self._first_content_at = self._loop.time() + budget
        self._move(Move.ACCEPTED)
        self.delivery.accept()

    def chunk(self, frame: JobChunk) -> None:
        """The next chunk, in order and with a good chain."""
        if self.phase is not Phase.ANSWERING:
            if self.phase is not Phase.PREFILLING:
                return
            self.inference_ran = True
            if self._first_content_at is not None:
                self._first_content_at = None
                self._arm()
            if frame.delta.is_content:
                self._move(Move.CONTENT)
        delta = frame.delta if frame.delta.role is None else self._without_second_role(frame.delta)
        if delta is not None:
            self.delivery.push(Item(delta, frame.logprobs))

    def _without_second_role(self, delta: Delta) -> Delta | None:
        """A second attempt begins with the role again; the buyer has seen it."""
        if not self._role_sent:
            self._role_sent = True
            return delta
        return delta.model_copy(update={"role": None}) if delta.is_content else None

    def completed(self, frame: JobCompleted) -> None:
        self._end(Outcome(frame.finish_reason, frame.usage, frame.receipt))

    def failed(self, frame: JobFailed, error: ApiError) -> None:
        """`error`: the frame's, as judged (`endings`)."""
        if error.fault is Fault.PROVIDER and self.phase is not Phase.ANSWERING:
            self._give_up(error)
        else:
            self._end(Outcome(None, frame.usage, frame.receipt, error))

    def rejected(self, error: ApiError) -> None:
        """`error`: the frame's, as judged (`endings`)."""
        if error.fault is Fault.BUYER:
            self._end(Outcome(None, None, None, error))
        else:
            self._give_up(error)

    def misled(self, error: ApiError) -> None:
        """The provider broke the protocol over this job."""
        self._cancel("protocol_violation")
        self._give_up(error)

    # --- what happens to the link --------------------------------------------------------------

    def link_lost(self) -> None:
        self._move(Move.LINK_LOST)

    def link_back(self) -> None:
        self._move(Move.LINK_BACK)

    def forgotten(self) -> None:
        """The provider is back and doesn't have this job."""
        self._let_go()
        self._give_up(self._disconnected())

    # --- what the buyer and the gateway do -----------------------------------------------------

    def leave(self) -> None:
        """The buyer has left, or has all of it."""
        if self.phase is Phase.ENDED:
            return
        self._cancel("buyer_left")
        self._end(Outcome(None, None, None))

    def abort(self, error: ApiError) -> None:
        """The gateway can't go on with this job."""
        self._cancel("gateway_closing")
        self._end(Outcome(None, None, None, self._told(error)))

    def refuse(self, error: ApiError) -> None:
        """No provider will have it."""
        self._end(Outcome(None, None, None, self._told(error)))

    # --- inside --------------------------------------------------------------------------------

    def _expired(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now < self._until():
            self._arm()
            return
        phase = self.phase
        if phase is Phase.QUEUED:
            self._desk.unlined(self)
            self.refuse(ApiError(ErrorCode.PROVIDER_OVERLOADED, "No provider had a free slot in time."))
        elif phase in AWAY:
            self._cancel("link_lost")
            self._give_up(self._disconnected())
        else:
            timeout = ApiError(ErrorCode.PROVIDER_TIMEOUT, "The provider took too long.")
            if phase is not Phase.ANSWERING and self.current is not None:
                self._desk.blame(self.current)
            self._cancel("timeout")
            if self.remaining > 0.001:
                self._give_up(timeout)
            else:
                self._end(Outcome(None, None, None, self._told(timeout)))

    def _give_up(self, error: ApiError) -> None:
        """This attempt is over; before the first content the job goes to another provider."""
        attempt, self.current = self.current, None
        if attempt is not None:
            attempt.job = None
            self.tried.add(attempt.provider_id)
        if self.phase in (Phase.ANSWERING, Phase.ANSWERING_AWAY):
            self._end(Outcome(None, None, None, self._told(error)))
            return
        self._first_content_at = None
        self._move(Move.GIVEN_UP)
        self._desk.place(self, self._told(error))

    def _cancel(self, reason: str) -> None:
        attempt, self.current = self.current, None
        if attempt is not None:
            attempt.job = None
            self.tried.add(attempt.provider_id)
            self._desk.cancel(attempt, reason)
        elif self.phase is Phase.QUEUED:
            self._desk.unlined(self)

    def _let_go(self) -> None:
        """Forget the attempt without a word to the provider; it may be offered the job anew."""
        attempt, self.current = self.current, None
        if attempt is not None:
            attempt.job = None

    def _end(self, outcome: Outcome) -> None:
        if self.phase is Phase.ENDED:
            return
        if self.current is not None:
            self.current.job = None
        self._move(Move.ENDED)
        self._desk.ended(self, outcome)

    def _told(self, error: ApiError) -> ApiError:
        error.inference_ran = error.inference_ran or self.inference_ran
        return error

    def _disconnected(self) -> ApiError:
        return ApiError(
            ErrorCode.PROVIDER_DISCONNECTED, "The provider was lost while it served this request."
        )

    def _until(self) -> float:
        return self._waits.until(
            self.phase, since=self._since, created=self._created, first_content=self._first_content_at
        )

    def _move(self, move: Move) -> None:
        self.phase = transition(self.phase, move)
        self._since = self._loop.time()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.phase is not Phase.ENDED:
            self._timer = self._loop.call_at(self._until(), self._expired)
