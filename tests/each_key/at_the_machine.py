"""What the machine's rules make of its state, as the heartbeat tells it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway_protocol.messages import ProviderState
from gateway_protocol.signing import ProviderKey, mint_provider_id
from provider import app
from provider.engine.process import EngineProcess
from provider.jobs.dispatcher import JobDispatcher
from provider.jobs.proof import Signer
from provider.oversight import Oversight
from provider.system.facts import Condition, Hardware
from tests.each_key.installation import Installation


class StandIn:
    """A machine in the state that a test wants."""

    def __init__(self, **condition: Any) -> None:
        self._condition = Condition(**condition)

    def condition(self) -> Condition:
        return self._condition

    def hardware(self) -> Hardware:
        return Hardware("Apple M2", 16 * 2**30, 10, "macOS 15.1")


def reason(**condition: Any) -> Callable[[Installation], Awaitable[str | None]]:
    """A look at a machine in this condition: why it may not serve, `None` if it may."""

    async def look(it: Installation) -> str | None:
        settings, paths = it.settings, it.paths
        specs = app.find_models(settings, paths, print)
        engine = EngineProcess(app.engine_settings(settings, specs))
        signer = Signer(ProviderKey.generate(), mint_provider_id(), settings.contract, lambda: 0)
        jobs = JobDispatcher(engine=engine, rules=app.answer_rules(settings), signer=signer)
        plan = app.oversight_plan(settings, paths, StandIn(**condition), specs, local=False)
        oversight = Oversight(plan, engine=engine, jobs=jobs, document=dict)
        await oversight.begin()
        oversight.close()
        presence = jobs.presence()
        return presence.reason if presence.state is ProviderState.PAUSED else None

    return look
