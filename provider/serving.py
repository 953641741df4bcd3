"""One configuration at work: engine, jobs, link and, with `--local`, the gateway; from start to drained end.

Put together by `app`, which hands in everything as plain values. The order of the ends is the reverse of the
beginnings, and each waits for what it must not lose: jobs, then their frames, then the link, then the engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from gateway_protocol.messages import CloseCode, Machine, Software
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings
from provider.errors import ConfigError, ProviderError
from provider.jobs.dispatcher import JobDispatcher
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import Signer
from provider.link.backoff import Backoff
from provider.link.board import LinkBoard
from provider.link.connection import Connection
from provider.link.dial import LinkSettings
from provider.link.presence import Identity, Presence, Profile
from provider.link.supervisor import LinkEnd, Supervisor
from provider.local_gateway.server import GatewayConfigError, LocalGateway, create_gateway
from provider.local_gateway.settings import GatewaySettings
from provider.oversight import Oversight, OversightPlan
from provider.own_gateway import admitting, own_link
from provider.status.document import counters_part, engine_part, models_part

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """What is to be served, how, for whom. `gateway`: of the embedded one, `None` without `--local`."""

    engine: EngineSettings
    rules: AnswerRules
    link: LinkSettings
    gateway: GatewaySettings | None
    identity: Identity
    software: Software
    machine: Machine
    drain_seconds: float
    oversight: OversightPlan


async def start_gateway(settings: GatewaySettings) -> LocalGateway:
    """A gateway whose port is open. Raises `ProviderError` saying what to do."""
    try:
        gateway = create_gateway(settings)
        await gateway.start()
    except GatewayConfigError as error:
        raise ConfigError([str(error)]) from None
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        reason = error.strerror or type(error).__name__
        raise ProviderError(f"can't listen on {where} ({reason}); choose another port with --port") from None
    return gateway


class Serving:
    """`run` once. `stopping` begins the drain, `hurry` cuts it short.

    `document`: the whole status document, of which this makes a part.
    """

    def __init__(
        self,
        plan: ServingPlan,
        *,
        stopping: asyncio.Event,
        hurry: asyncio.Event,
        document: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._plan = plan
        self._stopping = stopping
        self._hurry = hurry
        self._signer = Signer(
            plan.identity.key, plan.identity.provider_id, plan.rules.contract, lambda: int(time.time() * 1000)
        )
        self.engine = EngineProcess(plan.engine)
        self.jobs = JobDispatcher(engine=self.engine, rules=plan.rules, signer=self._signer)
        self.oversight = Oversight(plan.oversight, engine=self.engine, jobs=self.jobs, document=document)
        profile = Profile(
            plan.software,
            plan.machine,
            plan.rules.contract,
            plan.rules.force,
            measured=self.oversight.measured,
            machine_status=self.oversight.machine_status,
        )
        self._presence = Presence(identity=plan.identity, profile=profile, engine=self.engine, jobs=self.jobs)
        self.gateway: LocalGateway | None = None
        self._link_settings = plan.link
        self.board = LinkBoard(gateway=plan.link.url, clock=time.monotonic)
        self._supervisor = Supervisor(self._dial, backoff=Backoff(random.random), board=self.board)
        self._connection: Connection | None = None

    async def run(self) -> LinkEnd | None:
        """Serve until told to stop: `None`; or until the gateway's refusal can't be helped: that end.

        Raises `ProviderError` where serving can't begin.
        """
        try:
            # Before any port is open: a gateway that is gone again at once would be worse than none.
            await self.engine.check()
            if self._plan.gateway is not None:
                await self._start_own_gateway(self._plan.gateway)
            parked = await self.oversight.begin()
            await self.engine.start(parked=parked)
            if not parked and not await self._unless_stopped(self.engine.wait_ready()):
                return None
            return await self._serve()
        finally:
            self.oversight.close()
            await self.engine.aclose()
            if self.gateway is not None:
                await self.gateway.aclose()

    async def _start_own_gateway(self, settings: GatewaySettings) -> None:
        settings, token = admitting(settings, key_id=self.identity.key.key_id)
        self.gateway = await start_gateway(settings)
        self._link_settings = own_link(
            self._plan.link, link_url=self.gateway.link_url, token=token, certificate=settings.tls_cert
        )
        self.board.gateway = self.gateway.link_url

    async def _serve(self) -> LinkEnd | None:
        jobs = asyncio.create_task(self.jobs.run(), name="jobs")
        link = asyncio.create_task(self._supervisor.run(), name="link")
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        link_to = self._link_settings
        oversight = asyncio.create_task(
            self.oversight.run(
                link_to.url, self.identity.provider_id, lambda: self.identity.key, link_to.tls
            ),
            name="oversight",
        )
        try:
            await asyncio.wait({jobs, link, stop, oversight}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                await self.jobs.drain(self._plan.drain_seconds, self._hurry)
        finally:
            stop.cancel()
            self._supervisor.close()
            if self._connection is not None:
                await self._connection.close(CloseCode.GOING_AWAY)
            end = await link
            self.jobs.close()
            await jobs
            oversight.cancel()
            await asyncio.wait({oversight})
        if not oversight.cancelled():
            # It ends by itself only where it is broken, and then nobody looks after the machine any more.
            await oversight
        return end

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await `work`; False when the stop came first."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            await task
            return True
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _dial(self) -> LinkEnd:
        self._connection = Connection(
            self._link_settings, jobs=self.jobs, presence=self._presence, board=self.board
        )
        return await self._connection.run()

    async def routable(self) -> None:
        """Return once the gateway sends jobs here."""
        while not self.board.routable:
            await self.board.news.wait()

    async def known(self) -> None:
        """Return once the gateway has said whether it sends jobs here."""
        while self.board.routable is None:
            await self.board.news.wait()

    def reconnect(self) -> None:
        """The network has changed: dial now if no link stands."""
        self._supervisor.poke()

    async def adopt(self, identity: Identity) -> None:
        """Go on under a new key: register again at once, with the last key's consent."""
        if self._connection is not None:
            await self._connection.close(CloseCode.NORMAL)
        self._signer.key = identity.key
        self._presence.identity = identity
        self._supervisor.poke()

    @property
    def identity(self) -> Identity:
        return self._presence.identity

    @property
    def contract(self) -> str:
        return self._plan.rules.contract

    def document(self) -> dict[str, Any]:
        """This part of the status document."""
        status = self.engine.status()
        return {
            "engine": engine_part(status),
            "models": models_part(self.engine.models(), status, force=self._plan.rules.force),
            "link": self.board.document(),
            "jobs": {**self.jobs.states(), "outbox_bytes": self.jobs.outbox_bytes},
            "counters": counters_part(self.jobs.counters, self.jobs.rejected),
            **self.oversight.document(),
        }
