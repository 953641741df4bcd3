"""What goes on beside serving: the machine's rules, the books, the reports, the measuring.

    facts ─▶ PolicyLoop ─▶ Pausing ─▶ jobs, engine, caffeinate
    ended jobs ─▶ Bookkeeping ─▶ history, today, sums for metrics
    status document ─▶ Reporter ─▶ gateway          engine ─▶ measure ─▶ register.capacity.measured

None of it stands in the way of a job; what fails here is told and tried again.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from gateway_protocol.messages import MachineStatus, Measured
from gateway_protocol.receipts import make_status
from gateway_protocol.signing import ProviderKey
from provider.bookkeeping import Bookkeeping
from provider.engine.process import EngineProcess
from provider.jobs.dispatcher import JobDispatcher
from provider.measuring import Measuring
from provider.pausing import Pausing
from provider.policy.loop import PolicyLoop
from provider.policy.pause import PauseFile
from provider.policy.rules import Facts, Policy
from provider.status.reporter import Reporter, ReportSchedule, post, report_url, snapshot
from provider.system.caffeinate import Caffeinate

log = structlog.get_logger("oversight")


@dataclass(frozen=True, slots=True)
class OversightPlan:
    """`state`: the folder for pause, history, figures. `read`: the machine's facts, off the event loop.

    `report`: whether reports are sent; `report_url`: where to, `None`: to the gateway that is served.
    `setup`: what measured figures depend on; `measure_at_start`: take them when there are none.
    `metrics_port`: on loopback, `None` for no metrics.
    """

    policy: Policy
    state: Path
    read: Callable[[], Awaitable[Facts]]
    setup: str
    drain_seconds: float
    keep_awake: bool = True
    report: bool = True
    report_url: str | None = None
    measure_at_start: bool = True
    metrics_port: int | None = None


class Oversight:
    """`begin` before the engine starts, `run` beside the jobs, `close` after the last of them.

    `document`: the whole status document of this moment.
    """

    def __init__(
        self,
        plan: OversightPlan,
        *,
        engine: EngineProcess,
        jobs: JobDispatcher,
        document: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._plan = plan
        self._jobs = jobs
        self._document = document
        self._reporter: Reporter | None = None
        self._report_url = plan.report_url
        self.policy = PolicyLoop(
            policy=plan.policy, read=plan.read, pause_file=PauseFile(plan.state), clock=time.time
        )
        self.pausing = Pausing(
            policy=self.policy,
            engine=engine,
            jobs=jobs,
            caffeinate=Caffeinate(),
            drain_seconds=plan.drain_seconds,
            keep_awake=plan.keep_awake,
        )
        self.books = Bookkeeping(
            ends=jobs.ends,
            engine=engine,
            state=plan.state,
            zone=plan.policy.zone,
            wall_clock=time.time,
            clock=time.monotonic,
        )
        self.measuring = Measuring(engine=engine, jobs=jobs, state=plan.state, setup=plan.setup)

    async def begin(self) -> bool:
        """Whether the machine is paused in a way that leaves the engine unloaded."""
        await self.books.begin()
        return await self.pausing.begin()

    async def run(
        self,
        gateway_url: str,
        provider_id: str,
        key: Callable[[], ProviderKey],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Until cancelled. `gateway_url`, `tls`: the link's."""
        connector = aiohttp.TCPConnector(ssl=True if tls is None else tls)
        async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession(connector=connector) as session:
            tasks.create_task(self.policy.run(), name="policy")
            tasks.create_task(self.pausing.run(), name="pausing")
            tasks.create_task(self.books.run(), name="books")
            if self._plan.measure_at_start:
                tasks.create_task(self.measuring.when_idle(), name="measuring")
            if self._plan.report:
                url = self._report_url = self._plan.report_url or report_url(gateway_url, provider_id)
                self._reporter = Reporter(
                    take=self._report,
                    sign=lambda report: make_status(key(), report),
                    send=lambda token: post(session, url, token),
                    schedule=ReportSchedule(chance=random.random, next_at=time.monotonic() + 60),
                    clock=time.monotonic,
                )
                tasks.create_task(self._reporter.run(), name="reporter")
            await asyncio.Event().wait()

    def close(self) -> None:
        """Write what ended last."""
        self.books.close()

    def _report(self) -> dict[str, Any]:
        presence = self._jobs.presence()
        return snapshot(
            self._document(),
            {
                "state": presence.state.value,
                "reason": presence.reason,
                "slots_total": presence.slots_total,
                "slots_free": presence.slots_free,
                "queued": presence.queued,
            },
            int(time.time() * 1000),
        )

    # --- told to others --------------------------------------------------------------------------

    def machine_status(self) -> MachineStatus:
        """For the heartbeat."""
        facts = self.policy.facts
        source = {True: "battery", False: "mains", None: None}[facts.on_battery]
        return MachineStatus(thermal=facts.thermal, power_source=source, low_power=facts.low_power)

    def measured(self) -> Measured | None:
        """For the registration."""
        return self.measuring.known()

    def document(self) -> dict[str, Any]:
        """This part of the status document."""
        facts, measured = self.policy.facts, self.measured()
        return {
            "policy": {
                "paused": self.policy.decision.paused,
                "pauses": [
                    {"reason": pause.reason.value, "words": pause.words, "until": pause.until}
                    for pause in self.policy.pauses
                ],
                "changes_at": self.policy.decision.changes_at,
                "awake": self.pausing.caffeinate.held,
            },
            "machine": {
                "on_battery": facts.on_battery,
                "battery_percent": facts.battery_percent,
                "low_power": facts.low_power,
                "thermal": facts.thermal,
                "memory_pressure": facts.memory_pressure,
                "user_idle_seconds": facts.user_idle_seconds,
                "free_disk_bytes": facts.free_disk_bytes,
            },
            **self.books.document(),
            "measured": None if measured is None else measured.model_dump(),
            "reports": None if self._reporter is None else self._reporter.document(self._report_url or ""),
        }
