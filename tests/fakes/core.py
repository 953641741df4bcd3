"""The daemon's core without its shell: scripted engine, jobs and link, wired as in `app`."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from gateway_protocol.families import Family
from gateway_protocol.messages import JobOffer, Machine, Software
from gateway_protocol.signing import ProviderKey, mint_provider_id
from provider.engine.base import ThinkMarkers
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec
from provider.jobs.dispatcher import JobDispatcher
from provider.jobs.plan import AnswerRules
from provider.jobs.proof import Signer
from provider.link.backoff import Backoff
from provider.link.board import LinkBoard
from provider.link.connection import Connection
from provider.link.dial import LinkSettings, LinkTimers
from provider.link.presence import Identity, Presence, Profile
from provider.link.supervisor import LinkEnd, Supervisor

QWEN = ModelSpec(
    "qwen3-test",
    Family.QWEN,
    context_length=40_000,
    max_output_tokens=20_000,
    think=ThinkMarkers("<think>", "</think>"),
)
GPT_OSS = ModelSpec("gpt-oss-test", Family.GPT_OSS, context_length=40_000, max_output_tokens=20_000)
PLAIN = ModelSpec("plain-test", Family.NONE, context_length=40_000, max_output_tokens=20_000)


def write_script(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def offer(job_id: str, text: str = "hi", *, attempt: int = 1, **changes: Any) -> JobOffer:
    """An offer of a chat request; `changes` that `JobOffer` has are its own, the rest the request's."""
    own = {key: changes.pop(key) for key in [*changes] if key in JobOffer.model_fields}
    request = {
        "model": QWEN.id,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": False},
    }
    return JobOffer(
        job_id=job_id,
        attempt=attempt,
        deadline_ms=own.pop("deadline_ms", 60_000),
        request=request | changes,
        **own,
    )


class Core:
    """Started with `async with`. `end` is set once the supervisor has given up."""

    def __init__(
        self,
        script: Path,
        url: str,
        *,
        rules: AnswerRules | None = None,
        timers: LinkTimers | None = None,
        link: dict[str, Any] | None = None,
        chance: Any = random.random,
        queue_length: int = 64,
        **engine: Any,
    ) -> None:
        settings = {"backend": "scripted", "models": (QWEN, GPT_OSS, PLAIN), "slots": 4, "script": script}
        self.engine = EngineProcess(EngineSettings(**(settings | engine)))
        self.key = ProviderKey.generate()
        self.provider_id = mint_provider_id()
        self.link_settings = LinkSettings(url=url, timers=timers or LinkTimers(), **(link or {}))
        self.rules = rules or AnswerRules()
        self._chance = chance
        self._queue_length = queue_length
        self.end: LinkEnd | None = None

    async def __aenter__(self) -> Core:
        await self.engine.start()
        await self.engine.wait_ready()
        signer = Signer(self.key, self.provider_id, self.rules.contract, lambda: 1_700_000_000_000)
        self.jobs = JobDispatcher(
            engine=self.engine, rules=self.rules, signer=signer, queue_length=self._queue_length
        )
        profile = Profile(
            Software(name="malibu-provider", version="0"), Machine(), self.rules.contract, self.rules.force
        )
        presence = Presence(
            identity=Identity(self.provider_id, self.key),
            profile=profile,
            engine=self.engine,
            jobs=self.jobs,
        )
        loop = asyncio.get_running_loop()
        self.board = LinkBoard(gateway=self.link_settings.url, clock=loop.time)
        self.connection: Connection | None = None

        async def dial() -> LinkEnd:
            self.connection = Connection(
                self.link_settings, jobs=self.jobs, presence=presence, board=self.board
            )
            return await self.connection.run()

        self.supervisor = Supervisor(dial, backoff=Backoff(self._chance), board=self.board)
        self._jobs_task = asyncio.create_task(self.jobs.run())
        self.link_task = asyncio.create_task(self._keep_link())
        return self

    async def _keep_link(self) -> None:
        self.end = await self.supervisor.run()

    async def __aexit__(self, *exc: object) -> None:
        self.supervisor.close()
        if self.connection is not None:
            await self.connection.close()
        await self.link_task
        self.jobs.close()
        await self._jobs_task
        await self.engine.aclose()
