"""Which provider gets the next job: pure. Time comes in as a number of seconds, never goes backwards.

A provider's slot is counted here when it is promised (`reserve`) and in one place when it is free again
(`release`). Choosing costs the same whether ten or a thousand providers are there: for each model the
providers with a free slot stand in two indexed lists, those that have it loaded and those that would load it
first, of which at most `LOOK` are compared (docs/protocol.md, "Dispatch").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway_protocol.messages import NotRoutableReason, ProviderState
from provider.local_gateway.free_list import FreeList

LOOK: Final = 16
PREFIXES: Final = 8192
SPEED_UNKNOWN: Final = 20.0
FAILURES: Final = 3
FAILURE_WINDOW: Final = 60.0
COOLDOWN_MIN: Final = 30.0
COOLDOWN_MAX: Final = 300.0

_BY_STATE: Mapping[ProviderState, NotRoutableReason] = {
    ProviderState.DRAINING: NotRoutableReason.DRAINING,
    ProviderState.PAUSED: NotRoutableReason.PAUSED_BY_POLICY,
    ProviderState.DEGRADED: NotRoutableReason.DEGRADED,
}


@dataclass(slots=True)
class Candidate:
    """What dispatch knows of one connected provider.

    `models`: those that can take a job now, `unloaded` those among them that would have to be loaded first.
    `slots_elsewhere`: slots that its heartbeat reports as taken
    though none of our jobs holds them. `barred`: reasons that hold for the whole session (contract, version,
    key). `decode_tokens_per_s`: measured, 0 when unknown.
    """

    provider_id: str
    models: frozenset[str]
    slots: int
    state: ProviderState = ProviderState.READY
    unloaded: frozenset[str] = frozenset()
    barred: tuple[NotRoutableReason, ...] = ()
    decode_tokens_per_s: float = 0.0
    in_flight: int = 0
    slots_elsewhere: int = 0
    stale: bool = False
    cooled_until: float = 0.0
    cooldown: float = COOLDOWN_MIN
    failures: list[float] = field(default_factory=list)

    @property
    def free(self) -> int:
        return max(0, self.slots - self.slots_elsewhere - self.in_flight)

    def reasons(self, now: float) -> list[NotRoutableReason]:
        """Why it gets no jobs at all, first what its owner would mend first; empty: it is routable."""
        found = list(self.barred)
        if by_state := _BY_STATE.get(self.state):
            found.append(by_state)
        if self.stale:
            found.append(NotRoutableReason.STALE_HEARTBEAT)
        if now < self.cooled_until:
            found.append(NotRoutableReason.FAILED_RECENT_JOBS)
        if not self.models:
            found.append(NotRoutableReason.MODEL_NOT_READY)
        return found


# The models a provider is listed for, those of them it would load first, whether it has a free slot.
_Listed = tuple[frozenset[str], frozenset[str], bool]
_UNLISTED: Final[_Listed] = (frozenset(), frozenset(), False)


class Dispatch:
    """All connected providers and the choice among them."""

    def __init__(self) -> None:
        self._all: dict[str, Candidate] = {}
        self._ready: dict[str, set[str]] = {}
        self._free: dict[tuple[str, bool], FreeList] = {}
        self._listed: dict[str, _Listed] = {}
        self._warm: OrderedDict[bytes, str] = OrderedDict()
        self._resting: set[str] = set()

    def put(self, candidate: Candidate, now: float) -> None:
        """Add a provider or take over what changed about it."""
        self._all[candidate.provider_id] = candidate
        self.refresh(candidate.provider_id, now)

    def remove(self, provider_id: str) -> None:
        self._all.pop(provider_id, None)
        self._unlist(provider_id)

    def get(self, provider_id: str) -> Candidate | None:
        return self._all.get(provider_id)

    def refresh(self, provider_id: str, now: float) -> None:
        """Bring the lists in line with the provider's state; to be called after each change of it."""
        candidate = self._all.get(provider_id)
        wanted = _UNLISTED
        if candidate is not None and not candidate.reasons(now):
            wanted = (candidate.models, candidate.models & candidate.unloaded, bool(candidate.free))
        if wanted == self._listed.get(provider_id, _UNLISTED):
            return
        self._unlist(provider_id)
        models, unloaded, free = self._listed[provider_id] = wanted
        for model in models:
            self._ready.setdefault(model, set()).add(provider_id)
            if free:
                self._free.setdefault((model, model not in unloaded), FreeList()).add(provider_id)

    def _unlist(self, provider_id: str) -> None:
        models, unloaded, free = self._listed.pop(provider_id, _UNLISTED)
        for model in models:
            self._ready[model].discard(provider_id)
            if not self._ready[model]:
                del self._ready[model]
            if free:
                key = (model, model not in unloaded)
                self._free[key].discard(provider_id)
                if not self._free[key]:
                    del self._free[key]

    def ready(self, model: str) -> Collection[str]:
        """The providers that take jobs of this model, now or when one of their slots is free."""
        return self._ready.get(model, ())

    def models(self) -> Collection[str]:
        """The models that can be served now."""
        return self._ready.keys()

    def choose(
        self,
        model: str,
        now: float,
        *,
        exclude: Collection[str] = (),
        only: Collection[str] | None = None,
        prefixes: Iterable[bytes] = (),
    ) -> str | None:
        """The provider for a job, or `None` while none has a free slot.

        `only`: those it may go to (a forced call's), `None` for all. `prefixes`: hashes of the conversation's
        prefixes, longest first: the provider that has one warm is taken when it is free, else one that has
        the model loaded. What was warm where the model has been unloaded since is so no more.
        """

        def fits(provider_id: str) -> bool:
            return provider_id not in exclude and (only is None or provider_id in only)

        for loaded in (True, False):
            free = self._free.get((model, loaded))
            if free is None:
                continue
            for prefix in prefixes if loaded else ():
                warm = self._warm.get(prefix)
                if warm is not None and warm in free and fits(warm):
                    return warm
            found = [provider_id for provider_id in free.look(LOOK) if fits(provider_id)]
            if not found and (exclude or only is not None) and len(free) > LOOK:
                found = [provider_id for provider_id in free.look(len(free)) if fits(provider_id)]
            if found:
                return max(found, key=self._score)
        return None

    def _score(self, provider_id: str) -> tuple[float, float, int]:
        candidate = self._all[provider_id]
        # The jobs of a batch share the machine, so its speed counts for as much of it as is free.
        idle = candidate.free / max(1, candidate.slots)
        return (idle * (candidate.decode_tokens_per_s or SPEED_UNKNOWN), idle, candidate.free)

    def reserve(self, provider_id: str, now: float) -> None:
        self._all[provider_id].in_flight += 1
        self.refresh(provider_id, now)

    def release(self, provider_id: str, now: float) -> None:
        candidate = self._all.get(provider_id)
        if candidate is not None and candidate.in_flight:
            candidate.in_flight -= 1
            self.refresh(provider_id, now)

    def remember(self, prefixes: Iterable[bytes], provider_id: str) -> None:
        """This provider has these prefixes of a conversation warm now."""
        for prefix in prefixes:
            self._warm[prefix] = provider_id
            self._warm.move_to_end(prefix)
        while len(self._warm) > PREFIXES:
            self._warm.popitem(last=False)

    def succeeded(self, provider_id: str, now: float) -> None:
        if candidate := self._all.get(provider_id):
            candidate.failures.clear()
            candidate.cooldown = COOLDOWN_MIN
            self.refresh(provider_id, now)

    def failed(self, provider_id: str, now: float, offered_at: float | None = None) -> float | None:
        """Count a fault of the provider's; several within a minute cool it down, each time longer.

        `offered_at`: when the job was offered. One that was under way at the last fault has died of the same
        cause, as all jobs of a batch do, and doesn't count. Gives the end of a rest that begins now.
        """
        candidate = self._all.get(provider_id)
        if candidate is None:
            return None
        if offered_at is not None and candidate.failures and offered_at < candidate.failures[-1]:
            return None
        rests_until = None
        candidate.failures = [at for at in candidate.failures if now - at < FAILURE_WINDOW] + [now]
        if len(candidate.failures) >= FAILURES:
            candidate.failures.clear()
            candidate.cooled_until = rests_until = now + candidate.cooldown
            self._resting.add(provider_id)
            candidate.cooldown = min(COOLDOWN_MAX, candidate.cooldown * 2)
        self.refresh(provider_id, now)
        return rests_until

    def rest_ends(self, model: str, now: float, only: Collection[str] | None = None) -> float | None:
        """When the first provider of a model that does nothing but rest takes jobs again; `None`: none rests.

        `only`: see `choose`.
        """
        ends = []
        for provider_id in [*self._resting]:
            candidate = self._all.get(provider_id)
            if candidate is None or candidate.cooled_until <= now:
                self._resting.discard(provider_id)
            elif (
                model in candidate.models
                and (only is None or provider_id in only)
                and candidate.reasons(now) == [NotRoutableReason.FAILED_RECENT_JOBS]
            ):
                ends.append(candidate.cooled_until)
        return min(ends, default=None)
