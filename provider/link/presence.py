"""What the provider says of itself: `register` once for each link, `heartbeat` while it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway_protocol.families import FAMILIES
from gateway_protocol.messages import (
    PROTOCOL_VERSION,
    Capacity,
    Challenge,
    Feature,
    Heartbeat,
    Machine,
    MachineStatus,
    Measured,
    MemoryStatus,
    ModelState,
    OfferedModel,
    PreviousKey,
    Register,
    Software,
    ToolCallSupport,
)
from gateway_protocol.openai_types import Contract
from gateway_protocol.signing import ProviderKey, origin_of, sign_registration
from provider.engine.base import Engine, ModelInfo
from provider.jobs.dispatcher import JobDispatcher


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this provider is. `consents`: of the last key to this one, of the one before to that, and so on."""

    provider_id: str
    key: ProviderKey
    consents: tuple[PreviousKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """What doesn't change while the daemon runs, and where the rest is asked for."""

    software: Software
    machine: Machine
    contract: Contract
    force_tools: bool
    measured: Callable[[], Measured | None] = field(default=lambda: None)
    machine_status: Callable[[], MachineStatus] = field(default=MachineStatus)


class Presence:
    """Builds the two frames from what the engine and the jobs say at that moment.

    `identity` may be replaced between two links (rotation).
    """

    def __init__(self, *, identity: Identity, profile: Profile, engine: Engine, jobs: JobDispatcher) -> None:
        self.identity = identity
        self._profile = profile
        self._engine = engine
        self._jobs = jobs

    def register(self, challenge: Challenge, gateway_url: str) -> Register:
        """The answer to `challenge`, signed for the origin that was dialled."""
        identity, profile = self.identity, self._profile
        status = self._engine.status()
        return Register(
            protocol_version=PROTOCOL_VERSION,
            provider_id=identity.provider_id,
            public_key=identity.key.public_key,
            signature=sign_registration(
                identity.key,
                gateway_id=challenge.gateway_id,
                gateway_url=origin_of(gateway_url),
                nonce=challenge.nonce,
                provider_id=identity.provider_id,
            ),
            previous=identity.consents[0] if identity.consents else None,
            earlier=identity.consents[1:],
            software=profile.software,
            machine=profile.machine,
            models=tuple(
                self._offered(info, status.offered(info.id)) for info in self._engine.models().values()
            ),
            capacity=Capacity(slots=status.slots_total, measured=profile.measured()),
            contract=profile.contract,
            features=self._features(),
            active_jobs=self._jobs.ledger.active_jobs(),
        )

    def _features(self) -> tuple[str, ...]:
        infos = self._engine.models().values()
        can_constrain = bool(infos) and all(info.can_constrain for info in infos)
        return (Feature.RESPONSE_FORMAT,) if can_constrain else ()

    def heartbeat(self) -> Heartbeat:
        jobs = self._jobs.presence()
        status = self._engine.status()
        return Heartbeat(
            state=jobs.state,
            reason=jobs.reason,
            slots_total=jobs.slots_total,
            slots_free=jobs.slots_free,
            queued=jobs.queued,
            models=jobs.models,
            memory=MemoryStatus(
                active_bytes=status.active_bytes,
                cache_bytes=status.cache_bytes,
                limit_bytes=status.limit_bytes,
            ),
            machine=self._profile.machine_status(),
            counters=self._jobs.counters,
        )

    def _offered(self, info: ModelInfo, state: ModelState) -> OfferedModel:
        traits = FAMILIES[info.family]
        return OfferedModel(
            id=info.id,
            family=info.family.value,
            context_length=info.context_length,
            max_output_tokens=info.max_output_tokens,
            tool_calls=ToolCallSupport(
                first_turn=traits.first_turn,
                multi_turn=traits.multi_turn,
                forced=info.can_force and self._profile.force_tools,
            ),
            revision=info.revision,
            weights_sha256=info.weights_sha256,
            state=state,
        )


def telling(heartbeat: Heartbeat) -> tuple[object, ...]:
    """The part of a heartbeat whose change is told at once; the rest waits for the next one."""
    return (
        heartbeat.state,
        heartbeat.reason,
        heartbeat.slots_total,
        heartbeat.slots_free,
        heartbeat.queued,
        heartbeat.models,
    )
