"""The link's line on the status page: where it stands, since when, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway_protocol.messages import HeartbeatAck, Registered


class LinkStage(StrEnum):
    """`WAITING`: for the next attempt. `STOPPED`: no attempt until something changes here."""

    IDLE = "idle"
    DIALLING = "dialling"
    REGISTERING = "registering"
    REGISTERED = "registered"
    WAITING = "waiting"
    STOPPED = "stopped"


@dataclass(slots=True)
class LinkBoard:
    """Written by the supervisor and the connection, read by whoever shows status.

    `clock`: seconds, monotonic; `reconnect_at` is on it. `reasons`: the gateway's, why no jobs come.
    `news` is set at each change, and then replaced.
    """

    gateway: str
    clock: Callable[[], float]
    stage: LinkStage = LinkStage.IDLE
    session_id: str | None = None
    routable: bool | None = None
    reasons: tuple[str, ...] = ()
    last_error: str | None = None
    reconnect_at: float | None = None
    attempts: int = 0
    links: int = 0
    minimum_version: str | None = None
    recommended_version: str | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def dialling(self) -> None:
        self.stage = LinkStage.DIALLING
        self.reconnect_at = None
        self.attempts += 1
        self._tell()

    def registering(self) -> None:
        self.stage = LinkStage.REGISTERING
        self._tell()

    def registered(self, registered: Registered) -> None:
        self.stage = LinkStage.REGISTERED
        self.session_id = registered.session_id
        self.minimum_version = registered.minimum_version
        self.recommended_version = registered.recommended_version
        self.links += 1
        self._tell()

    def heard(self, ack: HeartbeatAck) -> None:
        self.routable = ack.routable
        self.reasons = tuple(reason.value for reason in ack.reasons)
        if self.routable:
            # What went wrong before no longer explains anything.
            self.last_error = None
        self._tell()

    def lost(self, error: str) -> None:
        self.stage = LinkStage.IDLE
        self.session_id = None
        self.routable = None
        self.reasons = ()
        self.last_error = error
        self._tell()

    def waiting(self, delay_s: float) -> None:
        self.stage = LinkStage.WAITING
        self.reconnect_at = self.clock() + delay_s
        self._tell()

    def stopped(self) -> None:
        self.stage = LinkStage.STOPPED
        self.reconnect_at = None
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def document(self) -> dict[str, Any]:
        """The `link` member of the status document."""
        reconnect_in = None
        if self.reconnect_at is not None:
            reconnect_in = round(max(0.0, self.reconnect_at - self.clock()), 1)
        registered = self.stage is LinkStage.REGISTERED
        return {
            "gateway": self.gateway,
            "stage": self.stage.value,
            "connected": registered or self.stage is LinkStage.REGISTERING,
            "registered": registered,
            "routable": bool(self.routable) if registered else False,
            "reasons": list(self.reasons),
            "session_id": self.session_id,
            "last_error": self.last_error,
            "reconnect_in_s": reconnect_in,
            "links": self.links,
            "attempts": self.attempts,
            "minimum_version": self.minimum_version,
            "recommended_version": self.recommended_version,
        }
