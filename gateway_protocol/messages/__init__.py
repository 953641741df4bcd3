"""The messages of the gateway–provider link as frozen pydantic models, discriminated by `type`.

Shapes are those of docs/protocol.md, "Messages". Unknown fields are ignored (a newer peer);
sizes, encoding and unknown types are `codec`'s business; who may send what when is `session`'s.
"""

from __future__ import annotations

from gateway_protocol.messages.codes import (
    CloseCode,
    FinishReason,
    ModelState,
    NackCode,
    NotRoutableReason,
    ProviderState,
    RefusedCode,
)
from gateway_protocol.messages.from_gateway import (
    Challenge,
    Drain,
    FromGateway,
    HeartbeatAck,
    JobAck,
    JobCancel,
    JobOffer,
    Refused,
    Registered,
)
from gateway_protocol.messages.from_provider import (
    Draining,
    FromProvider,
    Heartbeat,
    JobAccepted,
    JobChunk,
    JobCompleted,
    JobFailed,
    JobRejected,
    Register,
)
from gateway_protocol.messages.parts import (
    ActiveJob,
    Capacity,
    Counters,
    Delta,
    FunctionDelta,
    JobError,
    Machine,
    MachineStatus,
    Measured,
    MemoryStatus,
    ModelStatus,
    Nack,
    OfferedModel,
    PreviousKey,
    ResumeJob,
    Software,
    ToolCallDelta,
    ToolCallSupport,
    Usage,
    Wire,
)

PROTOCOL_VERSION = 1
SUBPROTOCOL = "malibu.provider.v1"

__all__ = [
    "PROTOCOL_VERSION",
    "SUBPROTOCOL",
    "ActiveJob",
    "Capacity",
    "Challenge",
    "CloseCode",
    "Counters",
    "Delta",
    "Drain",
    "Draining",
    "FinishReason",
    "FromGateway",
    "FromProvider",
    "FunctionDelta",
    "Heartbeat",
    "HeartbeatAck",
    "JobAccepted",
    "JobAck",
    "JobCancel",
    "JobChunk",
    "JobCompleted",
    "JobError",
    "JobFailed",
    "JobOffer",
    "JobRejected",
    "Machine",
    "MachineStatus",
    "Measured",
    "MemoryStatus",
    "ModelState",
    "ModelStatus",
    "Nack",
    "NackCode",
    "NotRoutableReason",
    "OfferedModel",
    "PreviousKey",
    "ProviderState",
    "Refused",
    "RefusedCode",
    "Register",
    "Registered",
    "ResumeJob",
    "Software",
    "ToolCallDelta",
    "ToolCallSupport",
    "Usage",
    "Wire",
]
