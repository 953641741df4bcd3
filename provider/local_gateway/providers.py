"""Who serves what: the gateway's memory of each provider over its connections. Pure but for the link it
holds.

A record outlives its link, so that a job can go on when the provider is back; it is forgotten once nothing of
it can be resumed (docs/protocol.md, "Nothing lost on a cut link").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gateway_protocol.families import Family
from gateway_protocol.messages import (
    Feature,
    Heartbeat,
    ModelState,
    NackCode,
    NotRoutableReason,
    OfferedModel,
    ProviderState,
    Register,
    Wire,
)
from gateway_protocol.openai_types import CheckedRequest, Contract
from gateway_protocol.session import GatewayJobs
from provider.local_gateway.dispatch import Candidate
from provider.local_gateway.handshake import may_serve
from provider.local_gateway.jobs import Attempt

_SERVABLE = frozenset({ModelState.READY, ModelState.UNLOADED})


class Link(Protocol):
    """A live connection to a provider. Frames leave in the order of the calls, offers behind the others."""

    def send(self, message: Wire) -> bool:
        """Queue a frame; False if it can't be sent because it is too large for the link."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close once what was queued is sent; nothing that arrives from now on has an effect."""


@dataclass(slots=True, eq=False)
class ProviderRecord:
    """`keys`: its public keys, in the order in which they came into force; the last one is in force.

    `jobs`: their frames' state, which outlives links. `attempts`: by (job, number), each holding a slot.

    `draining`: it has said so, and nothing but a new session takes that back. `losses`: of links so far.
    `candidate`: what dispatch knows of it, kept so that a new link doesn't wash off its failures.
    `nacked`: with which codes its current link has refused frames of ours.
    """

    provider_id: str
    keys: list[str]
    register: Register
    candidate: Candidate
    link: Link | None = None
    jobs: GatewayJobs = field(default_factory=GatewayJobs)
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    states: dict[str, ModelState] = field(default_factory=dict)
    heartbeat: Heartbeat | None = None
    heartbeat_at: float = 0.0
    draining: bool = False
    losses: int = 0
    nacked: set[NackCode] = field(default_factory=set)

    def offered(self, model: str) -> OfferedModel | None:
        return next((offered for offered in self.register.models if offered.id == model), None)

    @property
    def public_key(self) -> str:
        return self.keys[-1]

    def keys_since(self, public_key: str) -> list[str]:
        """The key that was in force when a job was offered, and those since: any may sign its receipt."""
        return self.keys[self.keys.index(public_key) :] if public_key in self.keys else [self.public_key]

    def list_models(self) -> None:
        """Let dispatch know which models can take a job, loaded or loaded on demand."""
        states = {model.id: self.states.get(model.id, model.state) for model in self.register.models}
        self.candidate.models = frozenset(name for name, state in states.items() if state in _SERVABLE)
        self.candidate.unloaded = frozenset(
            name for name, state in states.items() if state is ModelState.UNLOADED
        )


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers a version begins with: "1.2.0rc1" is (1, 2)."""
    numbers: list[int] = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()  # 1.2 and 1.2.0 are one version
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What a model's providers can do. `force`, `constrain`: the IDs of those that can; `all_ids`:

    all of them.
    """

    family: Family
    force: frozenset[str]
    constrain: frozenset[str]
    all_ids: frozenset[str]


class Directory:
    """All records, and what follows from them for requests and for dispatch."""

    def __init__(self, *, contract: Contract, minimum_version: str | None) -> None:
        self._contract = contract
        self._minimum = parse_version(minimum_version) if minimum_version else None
        self._traits: dict[str, ModelTraits | None] = {}
        self.records: dict[str, ProviderRecord] = {}

    def put(self, record: ProviderRecord) -> None:
        """A provider has registered, for the first time or again."""
        self.records[record.provider_id] = record
        self._traits.clear()

    def forget(self, provider_id: str) -> None:
        self.records.pop(provider_id, None)
        self._traits.clear()

    def by_model(self, model: str) -> Iterable[ProviderRecord]:
        return (record for record in self.records.values() if record.offered(model) is not None)

    def traits(self, model: str) -> ModelTraits | None:
        """`None`: no provider that is here, or was a moment ago, lists this model."""
        if model not in self._traits:
            if len(self._traits) >= 1024:  # names that strangers ask for
                self._traits.clear()
            self._traits[model] = self._gather(model)
        return self._traits[model]

    def _gather(self, model: str) -> ModelTraits | None:
        family: Family | None = None
        force: set[str] = set()
        constrain: set[str] = set()
        everyone: set[str] = set()
        for record in self.by_model(model):
            offered = record.offered(model)
            if offered is None or record.register.contract != self._contract:
                continue
            everyone.add(record.provider_id)
            family = family or Family(offered.family)
            if offered.tool_calls.forced:
                force.add(record.provider_id)
            if offered.tool_calls.forced or Feature.RESPONSE_FORMAT in record.register.features:
                constrain.add(record.provider_id)
        if family is None:
            return None
        return ModelTraits(family, frozenset(force), frozenset(constrain), frozenset(everyone))

    def bars(self, register: Register, allowed: Collection[str] | None) -> tuple[NotRoutableReason, ...]:
        """Why this registration gets no jobs. `allowed`: thumbprints that may serve, `None` for any."""
        found: list[NotRoutableReason] = []
        if not may_serve(register, allowed):
            found.append(NotRoutableReason.KEY_NOT_ALLOWED)
        if self._minimum is not None and parse_version(register.software.version) < self._minimum:
            found.append(NotRoutableReason.BELOW_MINIMUM_VERSION)
        if register.contract != self._contract:
            found.append(NotRoutableReason.CONTRACT_MISMATCH)
        return tuple(found)


def registered_candidate(
    register: Register, bars: tuple[NotRoutableReason, ...], former: Candidate | None
) -> Candidate:
    """What dispatch starts with; of a `former` link's it keeps failures and cool-down."""
    measured = register.capacity.measured
    candidate = former or Candidate(register.provider_id, frozenset(), 0)
    candidate.slots = register.capacity.slots
    candidate.state = ProviderState.READY
    candidate.barred = bars
    candidate.decode_tokens_per_s = measured.decode_tokens_per_s if measured else 0.0
    candidate.slots_elsewhere = 0
    candidate.stale = False
    return candidate


def apply_heartbeat(record: ProviderRecord, heartbeat: Heartbeat, now: float) -> None:
    """Take over what a heartbeat says. Slots it calls taken beyond our own jobs are someone else's."""
    candidate = record.candidate
    record.heartbeat, record.heartbeat_at = heartbeat, now
    record.states = {model.id: model.state for model in heartbeat.models}
    record.list_models()
    candidate.state = ProviderState.DRAINING if record.draining else heartbeat.state
    candidate.stale = False
    candidate.slots = heartbeat.slots_total
    taken = heartbeat.slots_total - heartbeat.slots_free
    candidate.slots_elsewhere = max(0, taken - candidate.in_flight)


def eligible(request: CheckedRequest, traits: ModelTraits, *, force_enabled: bool) -> frozenset[str] | None:
    """Where this request may go: providers that can do what it asks for, `None` for any of the model's."""
    wanted: frozenset[str] | None = None
    if request.tool_choice.forced and force_enabled and traits.force:
        wanted = traits.force
    if request.response_format is not None:
        wanted = traits.constrain if wanted is None else wanted & traits.constrain
    return None if wanted == traits.all_ids else wanted


def state_name(record: ProviderRecord) -> ProviderState:
    """The state a provider last told of itself."""
    return record.heartbeat.state if record.heartbeat else ProviderState.READY
