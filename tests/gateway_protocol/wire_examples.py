"""One message of every type, each field set, and strategies for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import (
    ActiveJob,
    Capacity,
    Challenge,
    Delta,
    Drain,
    Draining,
    FinishReason,
    FunctionDelta,
    Heartbeat,
    HeartbeatAck,
    JobAccepted,
    JobAck,
    JobCancel,
    JobChunk,
    JobCompleted,
    JobError,
    JobFailed,
    JobOffer,
    JobRejected,
    Machine,
    Measured,
    ModelState,
    ModelStatus,
    Nack,
    NackCode,
    NotRoutableReason,
    OfferedModel,
    PreviousKey,
    ProviderState,
    Refused,
    RefusedCode,
    Register,
    Registered,
    ResumeJob,
    Software,
    ToolCallDelta,
    ToolCallSupport,
    Usage,
)

USAGE = Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
ERROR = JobError.of(ApiError(ErrorCode.PROVIDER_ERROR, "The engine ended.", inference_ran=True))
HEAD = Delta(
    tool_calls=(
        ToolCallDelta(
            index=0,
            id="call_" + "0" * 32,
            type="function",
            function=FunctionDelta(name="read_file", arguments=""),
        ),
    )
)
LOGPROBS: dict[str, Any] = {
    "content": [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}],
    "refusal": None,
}


def register(active_jobs: tuple[ActiveJob, ...] = ()) -> Register:
    return Register(
        protocol_version=1,
        provider_id="prov_" + "a" * 26,
        public_key="k" * 43,
        signature="s" * 86,
        previous=PreviousKey(public_key="p" * 43, signature="q" * 86),
        software=Software(name="malibu-provider", version="0.1.0", mlx="0.32", mlx_lm="0.32", python="3.11"),
        machine=Machine(chip="M4", memory_bytes=1 << 35, gpu_cores=10, os="macOS 15"),
        models=(
            OfferedModel(
                id="m",
                family="qwen",
                context_length=40960,
                max_output_tokens=8192,
                tool_calls=ToolCallSupport(first_turn=True, multi_turn=True, forced=False),
                revision="r1",
                weights_sha256="f" * 64,
                state=ModelState.READY,
            ),
        ),
        capacity=Capacity(
            slots=4,
            measured=Measured(model="m", decode_tokens_per_s=50, prefill_tokens_per_s=900.5, at_ms=1),
        ),
        contract="malibu",
        features=("resume",),
        active_jobs=active_jobs,
    )


FROM_GATEWAY = (
    Challenge(protocol_versions=(1, 2), gateway_id="gw", nonce="n" * 43, time_ms=1),
    Registered(
        session_id="s",
        heartbeat_interval_ms=10_000,
        resume_window_ms=60_000,
        minimum_version="0.1",
        recommended_version="0.2",
        features=("resume",),
        resume=(ResumeJob(job_id="j", attempt=1, from_seq=3),),
    ),
    Refused(code=RefusedCode.KEY_MISMATCH, message="another key is pinned", retry_after_ms=None),
    HeartbeatAck(routable=False, reasons=(NotRoutableReason.NO_FREE_SLOT,), time_ms=2),
    JobOffer(
        job_id="j",
        attempt=1,
        request={"model": "m", "messages": [{"role": "user", "content": None}], "x": {"y": [None, 2**70]}},
        tenant="t",
        first_content_budget_ms=30_000,
        deadline_ms=600_000,
    ),
    JobAck(job_id="j", attempt=1, seq=0),
    JobCancel(job_id="j", attempt=1, reason="buyer_left"),
    Drain(deadline_ms=30_000),
    Nack(in_reply_to="job_chunk", code=NackCode.BAD_CHAIN, message="m"),
)
FROM_PROVIDER = (
    register((ActiveJob(job_id="j", attempt=1, next_seq=3),)),
    Heartbeat(
        state=ProviderState.READY,
        reason=None,
        slots_total=4,
        slots_free=3,
        queued=1,
        models=(ModelStatus(id="m", state=ModelState.READY),),
    ),
    JobAccepted(job_id="j", attempt=1, prompt_tokens=12, cached_tokens=4),
    JobRejected(job_id="j", attempt=1, error=ERROR, retry_after_ms=500),
    JobChunk(job_id="j", attempt=1, seq=0, delta=Delta(content="né\u2028\n"), logprobs=LOGPROBS, chain="c"),
    JobChunk(job_id="j", attempt=1, seq=1, delta=HEAD, chain="c"),
    JobCompleted(
        job_id="j", attempt=1, seq=2, finish_reason=FinishReason.TOOL_CALLS, usage=USAGE, receipt="a.b.c"
    ),
    JobFailed(job_id="j", attempt=1, seq=2, error=ERROR, usage=USAGE, receipt="a.b.c"),
    Draining(in_flight=1, deadline_ms=30_000),
    Nack(in_reply_to=None, code=NackCode.NOT_JSON, message="m"),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=12), children, max_size=4)
    ),
    max_leaves=12,
)
