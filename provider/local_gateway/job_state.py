"""Where one job stands at the gateway: an enum, a table and `transition()`. Pure.

    QUEUED ──assigned──▶ OFFERED ──accepted──▶ PREFILLING ──content──▶ ANSWERING ──ended──▶ ENDED
      ▲                    │  ▲                  │  ▲                    │   ▲
      │              link lost │           link lost │             link lost  │
      │                    ▼  link back          ▼  link back            ▼   link back
      └──given up── OFFERED_AWAY          PREFILLING_AWAY          ANSWERING_AWAY

`given up` (rejected, lost, too slow) leads back to the queue from every phase before the first content and
from none after it; `ended` is possible everywhere but in ENDED. Docs: protocol.md, "Nothing lost on a cut
link".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from provider.local_gateway.settings import Timers


class Phase(StrEnum):
    QUEUED = "queued"
    OFFERED = "offered"
    OFFERED_AWAY = "offered_away"
    PREFILLING = "prefilling"
    PREFILLING_AWAY = "prefilling_away"
    ANSWERING = "answering"
    ANSWERING_AWAY = "answering_away"
    ENDED = "ended"


class Move(StrEnum):
    ASSIGNED = "assigned"
    ACCEPTED = "accepted"
    CONTENT = "content"
    LINK_LOST = "link_lost"
    LINK_BACK = "link_back"
    GIVEN_UP = "given_up"
    ENDED = "ended"


class IllegalMove(Exception):
    """A move that the table doesn't have: a fault of this program, never of a peer."""


TABLE: Mapping[tuple[Phase, Move], Phase] = MappingProxyType(
    {
        (Phase.QUEUED, Move.ASSIGNED): Phase.OFFERED,
        (Phase.OFFERED, Move.ACCEPTED): Phase.PREFILLING,
        (Phase.OFFERED, Move.LINK_LOST): Phase.OFFERED_AWAY,
        (Phase.OFFERED, Move.GIVEN_UP): Phase.QUEUED,
        (Phase.OFFERED_AWAY, Move.LINK_BACK): Phase.OFFERED,
        (Phase.OFFERED_AWAY, Move.GIVEN_UP): Phase.QUEUED,
        (Phase.PREFILLING, Move.CONTENT): Phase.ANSWERING,
        (Phase.PREFILLING, Move.LINK_LOST): Phase.PREFILLING_AWAY,
        (Phase.PREFILLING, Move.GIVEN_UP): Phase.QUEUED,
        (Phase.PREFILLING_AWAY, Move.LINK_BACK): Phase.PREFILLING,
        (Phase.PREFILLING_AWAY, Move.GIVEN_UP): Phase.QUEUED,
        (Phase.ANSWERING, Move.LINK_LOST): Phase.ANSWERING_AWAY,
        (Phase.ANSWERING_AWAY, Move.LINK_BACK): Phase.ANSWERING,
        **{(phase, Move.ENDED): Phase.ENDED for phase in Phase if phase is not Phase.ENDED},
    }
)

AWAY = frozenset({Phase.OFFERED_AWAY, Phase.PREFILLING_AWAY, Phase.ANSWERING_AWAY})


def transition(phase: Phase, move: Move) -> Phase:
    try:
        return TABLE[phase, move]
    except KeyError:
        raise IllegalMove(f"{move} in {phase}") from None


@dataclass(frozen=True, slots=True)
class Waits:
    """The one time at which a job's phase runs out, from when the phase and the job began (seconds)."""

    timers: Timers
    queue_seconds: float

    def until(self, phase: Phase, *, since: float, created: float, first_content: float | None) -> float:
        """`since`: begin of the phase. `first_content`: end of the budget, `None` after a first token."""
        job_ends = created + self.timers.job_deadline
        match phase:
            case Phase.QUEUED:
                # Offered past its deadline it would only fail, and its provider be blamed.
                return min(job_ends, since + self.queue_seconds)
            case Phase.OFFERED:
                return min(job_ends, since + self.timers.offer)
            case Phase.OFFERED_AWAY | Phase.PREFILLING_AWAY:
                return min(job_ends, since + self.timers.redispatch)
            case Phase.PREFILLING:
                return job_ends if first_content is None else min(job_ends, first_content)
            case Phase.ANSWERING_AWAY:
                return min(job_ends, since + self.timers.resume_window)
            case Phase.ANSWERING | Phase.ENDED:
                return job_ends

    def first_content_budget(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Seconds from acceptance to the first token."""
        if self.timers.first_content is not None:
            return self.timers.first_content
        uncached = max(0, prompt_tokens - cached_tokens)
        return self.timers.first_content_base + self.timers.first_content_per_token * uncached
