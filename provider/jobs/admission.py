"""May this offer be taken? Slots are counted here when they are promised, and given back in one place. Pure.

consider(offer) ─▶ None: promised ─▶ … ─▶ release(job)          consider(offer) ─▶ ApiError: `job_rejected`
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import ModelState, ProviderState

RETRY_SOON_MS = 1_000
RETRY_LATER_MS = 5_000


@dataclass(frozen=True, slots=True)
class Readiness:
    """The engine as admission sees it: its slots, whether it serves, and the offered model's state."""

    ready: bool
    slots_total: int
    model: ModelState | None


class Admission:
    """Promised slots, and the reasons for which nothing is promised.

    `queue_length`: jobs taken beyond the slots; they wait in the engine's line, each with its deadline.
    """

    def __init__(self, *, queue_length: int) -> None:
        self._queue_length = queue_length
        self._promised: set[str] = set()
        self.draining = False
        self.paused: str | None = None

    @property
    def promised(self) -> int:
        return len(self._promised)

    def consider(self, job: str, readiness: Readiness) -> ApiError | None:
        """Promise a slot to `job`, or say why not. Every promise needs one `release`."""
        if self.draining:
            return _overloaded("This provider is finishing its work and takes no more.", RETRY_LATER_MS)
        if self.paused is not None:
            return _overloaded("This provider is paused by its owner's rules.", RETRY_LATER_MS)
        if not readiness.ready or readiness.model in (None, ModelState.FAILED):
            return _overloaded("The engine of this provider isn't ready.", RETRY_LATER_MS)
        if len(self._promised) >= readiness.slots_total + self._queue_length:
            return _overloaded("All slots of this provider and its queue are taken.", RETRY_SOON_MS)
        self._promised.add(job)
        return None

    def release(self, job: str) -> None:
        """The engine is done with the job. Harmless for one that was promised nothing."""
        self._promised.discard(job)

    def state(self, *, ready: bool, slots_free: int) -> ProviderState:
        """What a heartbeat says, the reason that holds longest first."""
        if self.draining:
            return ProviderState.DRAINING
        if self.paused is not None:
            return ProviderState.PAUSED
        if not ready:
            return ProviderState.DEGRADED
        return ProviderState.READY if slots_free else ProviderState.BUSY


def _overloaded(message: str, retry_after_ms: int) -> ApiError:
    return ApiError(ErrorCode.PROVIDER_OVERLOADED, message, retry_after_ms=retry_after_ms)
