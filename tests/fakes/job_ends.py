"""Two ends of jobs, for whoever counts them: one completed with a call, one rejected."""

from __future__ import annotations

from dataclasses import replace

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import FinishReason
from provider.jobs.ends import EndKind, JobEnd

END = JobEnd(
    job_id="job_1",
    attempt=2,
    model="m",
    kind=EndKind.COMPLETED,
    finish_reason=FinishReason.TOOL_CALLS,
    code=None,
    admitted=True,
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=5,
    reasoning_tokens=1,
    duration_s=1.5,
    ttft_s=0.25,
)
REJECTED = replace(
    END,
    model=None,
    kind=EndKind.REJECTED,
    finish_reason=None,
    code=ErrorCode.MODEL_NOT_FOUND,
    admitted=False,
    prompt_tokens=0,
    cached_tokens=0,
    completion_tokens=0,
    reasoning_tokens=0,
    ttft_s=None,
)
