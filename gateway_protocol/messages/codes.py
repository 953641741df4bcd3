"""The closed sets of the link: states, reasons and codes (docs/protocol.md)."""

from __future__ import annotations

from enum import StrEnum


class ProviderState(StrEnum):
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    PAUSED = "paused"
    DEGRADED = "degraded"


class ModelState(StrEnum):
    """`ready`: can take a job now; `unloaded`: on disk, loaded on demand (also routable)."""

    READY = "ready"
    LOADING = "loading"
    UNLOADED = "unloaded"
    FAILED = "failed"


class NotRoutableReason(StrEnum):
    """Why a provider gets no jobs: the closed set of `heartbeat_ack.reasons`."""

    MODEL_NOT_IN_DEMAND = "model_not_in_demand"
    BELOW_MINIMUM_VERSION = "below_minimum_version"
    DRAINING = "draining"
    FAILED_RECENT_JOBS = "failed_recent_jobs"
    NO_FREE_SLOT = "no_free_slot"
    PAUSED_BY_POLICY = "paused_by_policy"
    MODEL_NOT_READY = "model_not_ready"
    CONTRACT_MISMATCH = "contract_mismatch"
    KEY_NOT_ALLOWED = "key_not_allowed"
    DEGRADED = "degraded"
    STALE_HEARTBEAT = "stale_heartbeat"


class RefusedCode(StrEnum):
    """Why a gateway refused a registration."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    KEY_MISMATCH = "key_mismatch"
    KEY_NOT_ALLOWED = "key_not_allowed"
    TOKEN_REFUSED = "token_refused"
    GATEWAY_URL_MISMATCH = "gateway_url_mismatch"
    NONCE_REUSED = "nonce_reused"
    UNSUPPORTED_VERSION = "unsupported_version"
    BELOW_MINIMUM_VERSION = "below_minimum_version"
    TOO_MANY = "too_many"


class NackCode(StrEnum):
    """Why a frame was not acted upon; a nack never ends the session."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    UNEXPECTED = "unexpected"
    UNKNOWN_JOB = "unknown_job"
    STALE_ATTEMPT = "stale_attempt"
    BAD_CHAIN = "bad_chain"
    BAD_SEQUENCE = "bad_sequence"


class Feature:
    """What `register.features` may hold. A gateway ignores those that it doesn't know.

    `RESPONSE_FORMAT`: a grammar can hold the answers of all models here to a schema, also of those that can't
    be held to a call and where the owner has forcing switched off.
    """

    RESPONSE_FORMAT = "response_format"


class CloseCode:
    """Websocket close codes and what they mean to a provider (protocol.md, "Reconnect")."""

    NORMAL = 1000
    GOING_AWAY = 1001
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    MALFORMED = 4001
    REFUSED = 4003
    VERSION = 4004
    REPLACED = 4009
    TOO_MANY = 4429


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
