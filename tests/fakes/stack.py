"""The whole way of a job in one process: gateway, link, jobs and an engine's child, with clients for it."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import openai

from provider.engine.base import Generation, GenerationRequest
from provider.engine.process import EngineProcess
from provider.jobs.plan import AnswerRules
from provider.local_gateway.server import LocalGateway, create_gateway
from provider.local_gateway.settings import GatewaySettings, Timers
from tests.fakes.core import GPT_OSS, PLAIN, QWEN, Core, write_script

PATIENCE = 60.0


class WatchedEngine(EngineProcess):
    """An engine that remembers what it was asked."""

    def watch(self) -> None:
        self.asked: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        return super().submit(request)


class Stack:
    """Started with `async with`. `gateway_settings` are the gateway's, all else the engine's."""

    def __init__(
        self,
        folder: Path,
        *lines: dict[str, Any],
        rules: AnswerRules | None = None,
        gateway: dict[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        self.rules = rules or AnswerRules()
        self._script = write_script(folder / "script.jsonl", *lines)
        self._settings = {"contract": self.rules.contract, "force_tools": self.rules.force} | (gateway or {})
        self._engine = engine
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Stack:
        self.gateway: LocalGateway = create_gateway(
            GatewaySettings(port=0, **({"timers": Timers(ack=0.02)} | self._settings))
        )
        await self.gateway.start()
        self._open.push_async_callback(self.gateway.aclose)
        core = Core(self._script, self.gateway.link_url, rules=self.rules, **self._engine)
        core.engine.__class__ = WatchedEngine
        self.engine: WatchedEngine = core.engine  # type: ignore[assignment]
        self.engine.watch()
        self.core = await self._open.enter_async_context(core)
        unhurried = aiohttp.ClientTimeout(total=None)
        self.http = await self._open.enter_async_context(aiohttp.ClientSession(timeout=unhurried))
        self.openai = await self._open.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{self.gateway.url}/v1", api_key="any", max_retries=0)
        )
        async with asyncio.timeout(PATIENCE):
            while not self.core.board.routable:
                await self.core.board.news.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._open.aclose()

    async def post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a buffered request, or of a refusal."""
        return await self.post_raw(json.dumps(body).encode())

    async def post_raw(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """The same for a body in bytes."""
        url = f"{self.gateway.url}/v1/chat/completions"
        async with self.http.post(url, data=io.BytesIO(raw)) as response:
            return response.status, await response.json()

    async def stream(self, body: dict[str, Any]) -> Streamed:
        """A streamed request, read to its end."""
        url = f"{self.gateway.url}/v1/chat/completions"
        async with self.http.post(url, json=body | {"stream": True}) as response:
            raw = await response.read()
            if response.status != 200:
                return Streamed(response.status, [json.loads(raw)], done=False)
        data = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: ")]
        return Streamed(
            200, [json.loads(item) for item in data if item != "[DONE]"], done=data[-1] == "[DONE]"
        )


class Streamed:
    """What a stream said: its events, and what they add up to."""

    def __init__(self, status: int, events: list[dict[str, Any]], *, done: bool) -> None:
        self.status = status
        self.events = events
        self.done = done
        self.chunks = [event for event in events if "choices" in event]
        self.errors = [event["error"] for event in events if "error" in event]
        choices = [choice for chunk in self.chunks for choice in chunk["choices"]]
        self.deltas = [choice["delta"] for choice in choices]
        self.finish_reasons = [c["finish_reason"] for c in choices if c["finish_reason"] is not None]
        self.content = "".join(delta.get("content") or "" for delta in self.deltas)
        self.reasoning = "".join(delta.get("reasoning_content") or "" for delta in self.deltas)
        self.calls: list[dict[str, str]] = []
        for piece in [piece for delta in self.deltas for piece in delta.get("tool_calls") or ()]:
            if piece["index"] == len(self.calls):
                self.calls.append({"id": piece["id"], "name": piece["function"]["name"], "arguments": ""})
            self.calls[piece["index"]]["arguments"] += piece["function"].get("arguments") or ""


__all__ = ["GPT_OSS", "PLAIN", "QWEN", "Stack", "Streamed"]
