"""What a gateway says to a provider (docs/protocol.md, "Messages", G→P)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from gateway_protocol.messages.codes import NotRoutableReason, RefusedCode
from gateway_protocol.messages.parts import Nack, ResumeJob, Wire


class Challenge(Wire):
    """`nonce`: 32 random bytes, base64url without padding."""

    type: Literal["challenge"] = "challenge"
    protocol_versions: tuple[int, ...]
    gateway_id: str
    nonce: str
    time_ms: NonNegativeInt


class Registered(Wire):
    type: Literal["registered"] = "registered"
    session_id: str
    heartbeat_interval_ms: PositiveInt
    resume_window_ms: NonNegativeInt
    minimum_version: str | None = None
    recommended_version: str | None = None
    features: tuple[str, ...] = ()
    resume: tuple[ResumeJob, ...] = ()


class Refused(Wire):
    """`retry_after_ms` null: don't retry by yourself."""

    type: Literal["refused"] = "refused"
    code: RefusedCode
    message: str
    retry_after_ms: NonNegativeInt | None = None


class HeartbeatAck(Wire):
    type: Literal["heartbeat_ack"] = "heartbeat_ack"
    routable: bool
    reasons: tuple[NotRoutableReason, ...] = ()
    time_ms: NonNegativeInt


class JobOffer(Wire):
    """`request`: the buyer's body as normalised for the receipt, plus `stream` and `stream_options`.

    `tenant` absent: the prompt cache is neither read nor written.
    """

    type: Literal["job_offer"] = "job_offer"
    job_id: str
    attempt: PositiveInt
    request: dict[str, Any]
    tenant: str | None = None
    first_content_budget_ms: PositiveInt | None = None
    deadline_ms: PositiveInt


class JobAck(Wire):
    """Cumulative: every frame up to and including number `seq` has arrived.

    Terminal frames count: `job_completed` and `job_failed` by their `seq`, `job_rejected` as 0.
    """

    type: Literal["job_ack"] = "job_ack"
    job_id: str
    attempt: PositiveInt
    seq: NonNegativeInt


class JobCancel(Wire):
    type: Literal["job_cancel"] = "job_cancel"
    job_id: str
    attempt: PositiveInt
    reason: str


class Drain(Wire):
    type: Literal["drain"] = "drain"
    deadline_ms: NonNegativeInt | None = None


FromGateway = Annotated[
    Challenge | Registered | Refused | HeartbeatAck | JobOffer | JobAck | JobCancel | Drain | Nack,
    Field(discriminator="type"),
]
