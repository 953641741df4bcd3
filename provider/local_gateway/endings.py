"""What a provider's ending of an attempt is worth: whose fault it is, and whether its receipt holds. Pure.

A provider is believed about the request as far as only a provider can know (its template, its context, its
grammars); whom it blames is believed where its code allows it. Everything else counts against it.
"""

from __future__ import annotations

from typing import Final

from gateway_protocol.completion import NO_ANSWER
from gateway_protocol.errors import ERROR_RULES, ApiError, ErrorCode, Fault
from gateway_protocol.families import Family
from gateway_protocol.messages import JobCompleted, JobFailed, JobRejected
from gateway_protocol.openai_types import Contract
from gateway_protocol.receipts import Terminal
from gateway_protocol.session import events
from provider.local_gateway.jobs import Attempt
from provider.local_gateway.proof import Expected, ReceiptMismatch, check_receipt
from provider.local_gateway.providers import ProviderRecord

# What is the gateway's alone to say: keys, quotas, routes and bodies are no provider's business, and no
# provider is asked for a model that it hasn't registered.
_GATEWAYS_OWN: Final = frozenset(
    {
        ErrorCode.INVALID_JSON,
        ErrorCode.REQUEST_BODY_TOO_LARGE,
        ErrorCode.INVALID_API_KEY,
        ErrorCode.FORBIDDEN,
        ErrorCode.MODEL_NOT_FOUND,
        ErrorCode.UNKNOWN_URL,
        ErrorCode.METHOD_NOT_ALLOWED,
        ErrorCode.RATE_LIMITED,
    }
)
# A model wrote them, so the buyer's prompt may be behind them; only where a call can be read at all.
_OF_A_CALL: Final = frozenset(
    {
        ErrorCode.RESPONSE_BYTE_CAP_EXCEEDED,
        ErrorCode.MALFORMED_TOOL_CALL,
        ErrorCode.MALFORMED_TOOL_CALL_FINAL_JSON,
    }
)
_FULL: Final = frozenset({ErrorCode.PROVIDER_OVERLOADED, ErrorCode.NO_PROVIDER_AVAILABLE})


def judged(frame: JobFailed | JobRejected, attempt: Attempt) -> ApiError:
    """The error as the buyer is told of it; its `fault` is the gateway's own judgement."""
    rejected = isinstance(frame, JobRejected)
    error = frame.error.to_api_error(frame.retry_after_ms if isinstance(frame, JobRejected) else None)
    code = error.code
    # After `job_accepted` the request was found good: no 4xx can follow.
    if code in _GATEWAYS_OWN or (error.http_status < 500 and attempt.accepted):
        message = "The provider refused the request for a reason that isn't its to give."
        return ApiError(ErrorCode.PROVIDER_ERROR, message, inference_ran=error.inference_ran)
    calls = bool(attempt.spec.request.tools) or attempt.family is Family.GPT_OSS
    buyers = ERROR_RULES[code].fault is Fault.BUYER and error.fault is not Fault.PROVIDER
    if code in _OF_A_CALL and (rejected or not calls):
        buyers = False
    error.fault = Fault.BUYER if buyers else Fault.PROVIDER
    return error


def counts(error: ApiError) -> bool:
    """Whether a `judged` error counts against the provider; being full doesn't."""
    return error.fault is Fault.PROVIDER and error.code not in _FULL


def receipt_mismatch(
    record: ProviderRecord, attempt: Attempt, ended: events.JobEnded, contract: Contract
) -> str | None:
    """The claim of the receipt that doesn't hold, `None` if all do or there rightly is none."""
    frame = ended.terminal
    if isinstance(frame, JobRejected):
        return None
    if frame.receipt is None:
        return "missing" if isinstance(frame, JobFailed) and frame.error.inference_ran else None
    completed = isinstance(frame, JobCompleted)
    reason = frame.finish_reason if isinstance(frame, JobCompleted) else None
    buffered = not attempt.spec.request.stream
    answer = NO_ANSWER if buffered and not completed else attempt.collector.answer(reason)
    expected = Expected(
        job_id=attempt.job_id,
        attempt=attempt.number,
        provider_id=record.provider_id,
        model=attempt.model,
        revision=attempt.revision,
        contract=contract,
        request_sha256=attempt.spec.request_sha256,
        chain=ended.chain,
        chunks=ended.chunks,
        terminals=frozenset({Terminal.COMPLETED} if completed else {Terminal.FAILED, Terminal.CANCELLED}),
        answer=answer,
        finish_reason=reason,
        usage=frame.usage,
    )
    try:
        check_receipt(frame.receipt, record.keys_since(attempt.signed_by), expected)
    except ReceiptMismatch as mismatch:
        return mismatch.field
    return None


def contract_breach(attempt: Attempt, ended: events.JobEnded) -> ApiError | None:
    """What the ending claims that can't be, measured by what was delivered."""
    frame = ended.terminal
    try:
        if isinstance(frame, JobCompleted):
            answer = attempt.collector.answer(frame.finish_reason)
            attempt.check.completed(frame.finish_reason, frame.usage, answer)
        elif isinstance(frame, JobFailed):
            attempt.check.failed(frame.usage)
    except ApiError as breach:
        return breach
    return None
