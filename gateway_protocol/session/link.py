"""The phases of one link as a table, and the part of a session that both ends share."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from gateway_protocol.codec import FrameError, encode
from gateway_protocol.messages import FromGateway, FromProvider, Nack, NackCode
from gateway_protocol.session.events import Send
from gateway_protocol.session.moves import IllegalMove, Table


class LinkPhase(StrEnum):
    CONNECTED = "connected"
    CHALLENGED = "challenged"
    REGISTERING = "registering"
    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


_SERVING: Final = (LinkPhase.OPEN, LinkPhase.DRAINING)
_SERVING_TYPES: Final = (
    "heartbeat",
    "heartbeat_ack",
    "job_offer",
    "job_accepted",
    "job_rejected",
    "job_chunk",
    "job_ack",
    "job_completed",
    "job_failed",
    "job_cancel",
    "drain",
)
_HANDSHAKE: Final = {
    LinkPhase.CONNECTED: {"challenge": LinkPhase.CHALLENGED, "refused": LinkPhase.CLOSED},
    LinkPhase.CHALLENGED: {"register": LinkPhase.REGISTERING, "refused": LinkPhase.CLOSED},
    LinkPhase.REGISTERING: {"registered": LinkPhase.OPEN, "refused": LinkPhase.CLOSED},
}
_TABLE: Final = Table(
    {phase: {**moves, "nack": phase} for phase, moves in _HANDSHAKE.items()}
    | {
        phase: {**dict.fromkeys((*_SERVING_TYPES, "nack"), phase), "draining": LinkPhase.DRAINING}
        for phase in _SERVING
    }
)


def transition(phase: LinkPhase, message_type: str) -> LinkPhase:
    """The phase after a message, sent or received; raises `IllegalMove` where the table has no entry."""
    return _TABLE.after(phase, message_type)


class LinkSession:
    """The link's phase, and the way a message moves it."""

    def __init__(self) -> None:
        self.phase = LinkPhase.CONNECTED

    @property
    def is_open(self) -> bool:
        """Whether job frames may be sent."""
        return self.phase in _SERVING

    def close(self) -> None:
        """The socket is gone or given up: nothing that still arrives has an effect. Jobs stay as they are."""
        self.phase = LinkPhase.CLOSED

    def send(self, message: FromProvider | FromGateway) -> str:
        """The frame of a message that this side may send now; raises `IllegalMove` or `FrameError`."""
        phase = transition(self.phase, message.type)
        frame = encode(message)
        self.phase = phase
        return frame

    def _moved_by(self, message: FromProvider | FromGateway) -> Send | None:
        """Move the phase, or give the nack that answers a message out of place."""
        try:
            self.phase = transition(self.phase, message.type)
        except IllegalMove as error:
            return nack(message.type, NackCode.UNEXPECTED, str(error))
        return None


class NamesJob(Protocol):
    """A frame about a job, or what is known of it."""

    @property
    def job_id(self) -> str: ...

    @property
    def attempt(self) -> int: ...


def nack(message_type: str | None, code: NackCode, text: str, job: NamesJob | None = None) -> Send:
    named = (None, None) if job is None else (job.job_id, job.attempt)
    return Send(Nack(in_reply_to=message_type, job_id=named[0], attempt=named[1], code=code, message=text))


def answer_to(error: FrameError) -> list[Send]:
    """A nack for a malformed frame; a malformed nack gets none: two peers could go on answering for ever."""
    return [] if error.in_reply_to == "nack" else [Send(error.nack())]
