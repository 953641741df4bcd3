"""What a gateway says to a provider (docs/protocol.md, "Messages", G→P)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway_protocol.messages.codes import NotRoutableReason, RefusedCode
from gateway_protocol.messages.parts import Count, JobId, Nack, Name, Positive, ResumeJob, Wire


class Challenge(Wire):
    """`nonce`: 32 random bytes, base64url without padding."""

    type: Literal["challenge"] = "challenge"
    protocol_versions: tuple[int, ...]
    gateway_id: Name
    nonce: Name
    time_ms: Count


class Registered(Wire):
    type: Literal["registered"] = "registered"
    session_id: Name
    heartbeat_interval_ms: Positive
    resume_window_ms: Count
    minimum_version: str | None = None
    recommended_version: str | None = None
    features: tuple[str, ...] = ()
    resume: tuple[ResumeJob, ...] = ()


class Refused(Wire):
    """`retry_after_ms` null: don't retry by yourself."""

    type: Literal["refused"] = "refused"
    code: RefusedCode
    message: str
    retry_after_ms: Count | None = None


class HeartbeatAck(Wire):
    type: Literal["heartbeat_ack"] = "heartbeat_ack"
    routable: bool
    reasons: tuple[NotRoutableReason, ...] = ()
    time_ms: Count


class JobOffer(Wire):
    """`request`: the buyer's body as normalised for the receipt, plus `stream` and `stream_options`.

    `tenant` absent: the prompt cache is neither read nor written.
    """

    type: Literal["job_offer"] = "job_offer"
    job_id: JobId
    attempt: Positive
    request: dict[str, Any]
    tenant: Name | None = None
    first_content_budget_ms: Positive | None = None
    deadline_ms: Positive


class JobAck(Wire):
    """Cumulative: every frame up to and including number `seq` has arrived.

    Terminal frames count: `job_completed` and `job_failed` by their `seq`, `job_rejected` as 0.
    """

    type: Literal["job_ack"] = "job_ack"
    job_id: JobId
    attempt: Positive
    seq: Count


class JobCancel(Wire):
    type: Literal["job_cancel"] = "job_cancel"
    job_id: JobId
    attempt: Positive
    reason: str


class Drain(Wire):
    type: Literal["drain"] = "drain"
    deadline_ms: Count | None = None


FromGateway = Annotated[
    Challenge | Registered | Refused | HeartbeatAck | JobOffer | JobAck | JobCancel | Drain | Nack,
    Field(discriminator="type"),
]
