"""Who may say what when on one link: `ProviderSession` and `GatewaySession`. Pure; one per websocket.

    CONNECTED ──challenge──▶ CHALLENGED ──register──▶ REGISTERING ──registered──▶ OPEN ──draining──▶ DRAINING
        └────────────────────────┴──────── refused ────────┴──▶ CLOSED ◀── close() ──┴──────────────────┘

In OPEN and DRAINING: heartbeats, job frames, `drain`. A nack is allowed anywhere and moves nothing.

The edge reads a frame, calls `receive_frame`, acts on the events in order (`events`), and passes what it
wants to say through `send`, which gives back the text of the frame. A frame of the peer that doesn't fit is
answered with a nack (a `Send` event) and has no effect; one of our own raises `IllegalMove`.

What is known of each job outlives links and is passed in: `ProviderJobs` (the dispatcher reports every job
frame it makes with `made`, on or off a link) and `GatewayJobs` (one for each provider identity). Frames are
numbered as `job_frames` says: every terminal frame is acknowledged, too, and kept by its provider until then.

Cut and resume: `register.active_jobs` ─▶ `GatewaySession.admit` ─▶ `registered.resume` ─▶ `JobResumed` or
`JobAbandoned` at the provider; `JobLost`, or the cancel once more, at the gateway. Of two sessions of one
identity the older is closed before `admit` is called on the newer.
"""

from gateway_protocol.session.gateway import Admission, GatewaySession
from gateway_protocol.session.gateway_jobs import GatewayJob, GatewayJobs
from gateway_protocol.session.job_frames import JobPhase
from gateway_protocol.session.link import LinkPhase
from gateway_protocol.session.moves import IllegalMove
from gateway_protocol.session.provider import ProviderSession
from gateway_protocol.session.provider_jobs import ProviderJob, ProviderJobs

__all__ = [
    "Admission",
    "GatewayJob",
    "GatewayJobs",
    "GatewaySession",
    "IllegalMove",
    "JobPhase",
    "LinkPhase",
    "ProviderJob",
    "ProviderJobs",
    "ProviderSession",
]
