"""Every error a buyer can receive, in one table.

    ProtocolError
    ├── ApiError          a buyer's request or answer failed; becomes an envelope, an event or a JobError
    └── FrameError        a websocket frame is malformed (see `codec`); becomes a `nack`

`ERROR_RULES` is the only place that maps a code to its HTTP status, type and retryability
(docs/contract.md, "Errors").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class ErrorCode(StrEnum):
    """Closed set of the codes that a buyer can see."""

    INVALID_JSON = "invalid_json"
    INVALID_REQUEST = "invalid_request"
    INVALID_TOOLS = "invalid_tools"
    UNSUPPORTED_FIELD = "unsupported_field"
    UNSUPPORTED_TOOL_CHOICE = "unsupported_tool_choice"
    UNSUPPORTED_MODEL_FOR_MULTI_TURN = "unsupported_modelID_for_multi_turn"
    INVALID_TOOL_CALL_ID = "invalid_tool_call_id"
    TOOL_CALL_ID_NOT_FOUND = "tool_call_id_not_found"
    DUPLICATE_TOOL_CALL_ID = "duplicate_tool_call_id"
    MESSAGES_TOO_LONG = "messages_too_long"
    TOO_MANY_TOOL_CALLS = "too_many_tool_calls"
    TOOL_RESULT_TOO_LARGE = "tool_result_too_large"
    TOOL_RESULTS_AGGREGATE_TOO_LARGE = "tool_results_aggregate_too_large"
    TOOL_CALL_ARGUMENTS_TOO_LARGE = "tool_call_arguments_too_large"
    TOOL_CALL_ARGUMENTS_AGGREGATE_TOO_LARGE = "tool_call_arguments_aggregate_too_large"
    REQUEST_BODY_TOO_LARGE = "request_body_too_large"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    INVALID_API_KEY = "invalid_api_key"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_URL = "unknown_url"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    RATE_LIMITED = "rate_limited"
    RESPONSE_BYTE_CAP_EXCEEDED = "response_byte_cap_exceeded"
    MALFORMED_TOOL_CALL = "malformed_tool_call"
    MALFORMED_TOOL_CALL_FINAL_JSON = "malformed_tool_call_final_json"
    UPSTREAM_ERROR = "upstream_error"
    PROVIDER_DISCONNECTED = "provider_disconnected"
    PROVIDER_ERROR = "provider_error"
    NO_PROVIDER_AVAILABLE = "no_provider_available"
    PROVIDER_OVERLOADED = "provider_overloaded"
    PROVIDER_TIMEOUT = "provider_timeout"


class Fault(StrEnum):
    """Whose fault a failed job is; only `provider` counts against a provider."""

    BUYER = "buyer"
    PROVIDER = "provider"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """What a code means on the wire: HTTP status, `error.type`, `error.retryable`, default fault."""

    http_status: int
    type: str
    retryable: bool
    fault: Fault


def _buyer(http_status: int, *, retryable: bool = False) -> ErrorRule:
    return ErrorRule(http_status, "invalid_request_error", retryable, Fault.BUYER)


def _api(http_status: int, *, retryable: bool, fault: Fault = Fault.PROVIDER) -> ErrorRule:
    return ErrorRule(http_status, "api_error", retryable, fault)


ERROR_RULES: Mapping[ErrorCode, ErrorRule] = MappingProxyType(
    {
        ErrorCode.INVALID_JSON: _buyer(400),
        ErrorCode.INVALID_REQUEST: _buyer(400),
        ErrorCode.INVALID_TOOLS: _buyer(400),
        ErrorCode.UNSUPPORTED_FIELD: _buyer(400),
        ErrorCode.UNSUPPORTED_TOOL_CHOICE: _buyer(400),
        ErrorCode.UNSUPPORTED_MODEL_FOR_MULTI_TURN: _buyer(400),
        ErrorCode.INVALID_TOOL_CALL_ID: _buyer(400),
        ErrorCode.TOOL_CALL_ID_NOT_FOUND: _buyer(400),
        ErrorCode.DUPLICATE_TOOL_CALL_ID: _buyer(400),
        ErrorCode.MESSAGES_TOO_LONG: _buyer(400),
        ErrorCode.TOO_MANY_TOOL_CALLS: _buyer(400),
        ErrorCode.TOOL_RESULT_TOO_LARGE: _buyer(413),
        ErrorCode.TOOL_RESULTS_AGGREGATE_TOO_LARGE: _buyer(413),
        ErrorCode.TOOL_CALL_ARGUMENTS_TOO_LARGE: _buyer(413),
        ErrorCode.TOOL_CALL_ARGUMENTS_AGGREGATE_TOO_LARGE: _buyer(413),
        ErrorCode.REQUEST_BODY_TOO_LARGE: _buyer(413),
        ErrorCode.CONTEXT_LENGTH_EXCEEDED: _buyer(400),
        ErrorCode.INVALID_API_KEY: _buyer(401),
        ErrorCode.FORBIDDEN: _buyer(403),
        ErrorCode.MODEL_NOT_FOUND: _buyer(404),
        ErrorCode.UNKNOWN_URL: _buyer(404),
        ErrorCode.METHOD_NOT_ALLOWED: _buyer(405),
        ErrorCode.RATE_LIMITED: _buyer(429, retryable=True),
        ErrorCode.RESPONSE_BYTE_CAP_EXCEEDED: _api(502, retryable=False, fault=Fault.BUYER),
        ErrorCode.MALFORMED_TOOL_CALL: _api(502, retryable=False, fault=Fault.BUYER),
        ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON: _api(502, retryable=True, fault=Fault.BUYER),
        ErrorCode.UPSTREAM_ERROR: ErrorRule(502, "upstream_error", False, Fault.PROVIDER),
        ErrorCode.PROVIDER_DISCONNECTED: _api(502, retryable=True),
        ErrorCode.PROVIDER_ERROR: _api(502, retryable=True),
        ErrorCode.NO_PROVIDER_AVAILABLE: _api(503, retryable=True, fault=Fault.GATEWAY),
        ErrorCode.PROVIDER_OVERLOADED: _api(503, retryable=True),
        ErrorCode.PROVIDER_TIMEOUT: _api(504, retryable=True),
    }
)


class ProtocolError(Exception):
    """Root of everything `gateway_protocol` raises."""


class ApiError(ProtocolError):
    """A buyer's request can't be served, or its answer failed.

    `param` is the field's path (`messages[2].content`) where docs/contract.md gives one, else `None`.
    `retry_after_ms` becomes `Retry-After`. `inference_ran` tells whether tokens were generated.
    `fault` defaults to the rule's.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        inference_ran: bool = False,
        fault: Fault | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_ms = retry_after_ms
        self.inference_ran = inference_ran
        self.fault = fault or ERROR_RULES[code].fault

    @property
    def rule(self) -> ErrorRule:
        return ERROR_RULES[self.code]

    @property
    def http_status(self) -> int:
        return self.rule.http_status

    @property
    def retryable(self) -> bool:
        return self.rule.retryable

    def envelope(self, request_id: str) -> dict[str, Any]:
        """The JSON object of an HTTP error body and of a stream's error event alike."""
        return {
            "error": {
                "message": self.message,
                "type": self.rule.type,
                "param": self.param,
                "code": self.code.value,
                "retryable": self.rule.retryable,
                "request_id": request_id,
                "inference_ran": self.inference_ran,
            }
        }
