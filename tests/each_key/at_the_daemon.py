"""What a daemon lets others see: its gateway what it registers and answers, its owner status and logs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.main import run
from gateway_protocol.messages import JobCancel, JobCompleted
from gateway_protocol.session import events
from provider.errors import ProviderError
from tests.each_key.installation import PATIENCE, Daemon, Installation
from tests.fakes.core import offer, write_script
from tests.fakes.fake_gateway import FakeGateway, FakeLink, http_answer
from tests.fakes.waiting import eventually

MODEL = "qwen3-mine"
TINY = Path(__file__).parents[1] / "fixtures" / "models" / "tiny-qwen3"
# A measuring that couldn't be done is tried again only after a minute.
MUCH_PATIENCE = 240.0
CAFFEINATE = Path(__file__).parents[1] / "fakes" / "macos" / "caffeinate"

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("first", "second")
]


def _call(name: str) -> str:
    arguments = {"place": "a long way from here, over the hills"}
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"


def scripts(folder: Path) -> dict[str, Any]:
    """The scripted engine and the one model it plays, as keys."""
    write_script(folder / "other.jsonl", {"text": "Good evening"})
    script = write_script(
        folder / "script.jsonl",
        {"match": "for ever", "text": "0123456789" * 1000, "chars_per_token": 1, "ms_per_token": 5},
        {"match": "call once", "text": _call("first"), "chars_per_token": 3, "ms_per_token": 2},
        {"match": "call twice", "text": _call("first") + _call("second")},
        {"text": "Hello"},
    )
    return {"engine.kind": "scripted", "engine.models": [MODEL], "engine.script": str(script)}


# --- towards a gateway elsewhere -----------------------------------------------------------------


async def registration(it: Installation) -> dict[str, Any]:
    """How it dials and what it says of itself. Of `gateway.url` the path holds: the rest is the test's."""
    async with FakeGateway() as gateway:
        _dial(it, gateway)
        async with it.daemon(local=False):
            link = await gateway.link(seconds=PATIENCE)
            assert link.register is not None
            said = link.register.model_dump(mode="json")
            dialled = gateway.requests[0]
    return {
        "path": dialled.path,
        "token": dialled.headers.get("Authorization"),
        "contract": said["contract"],
        "slots": said["capacity"]["slots"],
        "models": [model["id"] for model in said["models"]],
        **{f"model.{name}": value for name, value in said["models"][0].items()},
    }


async def asked_again(it: Installation) -> bool:
    """Whether, as a service, it comes back to a gateway that has refused it."""
    async with FakeGateway(answer=http_answer(401)) as gateway:
        _dial(it, gateway)
        async with it.daemon(local=False, service=True):
            await eventually(lambda: len(gateway.requests) > 1, seconds=PATIENCE)
    return True


async def second_job(it: Installation) -> str:
    """What a job comes to that has found every slot taken."""
    async with FakeGateway() as gateway:
        _dial(it, gateway)
        async with it.daemon(local=False):
            link = await gateway.link(seconds=PATIENCE)
            await link.send(offer("job_1", "for ever", model=MODEL))
            await link.until(events.JobWasAccepted, seconds=PATIENCE)
            await link.send(offer("job_2", model=MODEL))
            if it.settings.queue.seconds:
                # Where it may wait, a slot becomes free for it.
                await link.send(JobCancel(job_id="job_1", attempt=1, reason="client_disconnected"))
            end = await _end_of(link, "job_2")
    return "completed" if isinstance(end, JobCompleted) else str(end.error.code)


async def _end_of(link: FakeLink, job_id: str) -> Any:
    while True:
        ended = await link.until(events.JobEnded, seconds=PATIENCE)
        if ended.terminal.job_id == job_id:
            return ended.terminal


async def drain(it: Installation) -> int:
    """How long its jobs may go on after a stop, in milliseconds, as the gateway is told."""
    async with FakeGateway() as gateway:
        _dial(it, gateway)
        async with it.daemon(local=False) as daemon:
            link = await gateway.link(seconds=PATIENCE)
            await link.send(offer("job_1", "for ever", model=MODEL))
            await link.until(events.JobWasAccepted, seconds=PATIENCE)
            await daemon.command("stop")
            told = await link.until(events.DrainingReceived, seconds=PATIENCE)
            await link.send(JobCancel(job_id="job_1", attempt=1, reason="client_disconnected"))
            await link.until(events.JobEnded, seconds=PATIENCE)
            await asyncio.wait({daemon.run, asyncio.ensure_future(link.closed(seconds=PATIENCE))})
    return told.draining.deadline_ms


def _dial(it: Installation, gateway: FakeGateway) -> None:
    file = it.home / "config.toml"
    file.write_text(file.read_text("utf-8").replace("ws://127.0.0.1:9", f"ws://127.0.0.1:{gateway.port}"))


# --- with a gateway of its own -------------------------------------------------------------------


async def outcome(it: Installation) -> str:
    """What comes of a start: an answer, or what its owner is told."""
    try:
        async with it.daemon(local=True) as daemon:
            return await _text(await daemon.routable())
    except ProviderError as error:
        return str(error)


async def answer(it: Installation) -> dict[str, Any]:
    """What it answers to buyers."""
    async with it.daemon(local=True) as daemon, aiohttp.ClientSession() as session:
        url = (await daemon.routable())["process"]["local_url"]
        once = await _ask(session, url, "call once", tools=TOOLS, stream=True)
        twice = await _ask(session, url, "call twice", tools=TOOLS)
        plain = await _ask(session, url, "Hi")
    message = twice["choices"][0]["message"]
    return {
        "text": plain["choices"][0]["message"]["content"],
        "pieces": once.count('"arguments"') > 3,
        "calls": len(message.get("tool_calls", ())),
    }


async def owners_view(it: Installation) -> dict[str, Any]:
    """What its owner sees while it serves: status, metrics, log lines."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        async with it.daemon(local=True) as daemon:
            document = await daemon.routable()
            scraped = await _scraped(document["metrics"]["url"])
    own = document["process"]["local_url"]
    reports, lines = document["reports"], printed.getvalue().splitlines()
    return {
        "metrics": scraped,
        "reports": reports is not None,
        "reports to": reports and "/".join(reports["url"].split("/")[:3]).replace(own, "its own gateway"),
        "says what it does": any("gateway_started" in line for line in lines),
        "in JSON": any(line.startswith('{"event"') for line in lines),
    }


async def _scraped(url: str | None) -> str | None:
    """What Prometheus would find."""
    if url is None:
        return None
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.content_type


async def kept_awake(it: Installation) -> bool:
    """Whether the system's command was run that keeps a machine awake."""
    notes = it.home / "notes"
    notes.touch()
    commands = it.home / "bin"
    commands.mkdir()
    for name in ("caffeinate", "systemd-inhibit"):
        (commands / name).symlink_to(CAFFEINATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(commands), prepend=os.pathsep)
        patch.setenv("FAKE_CAFFEINATE", str(notes))
        async with it.daemon(local=True) as daemon:
            await daemon.routable()
            if it.settings.policy.keep_awake:
                await eventually(lambda: "start" in notes.read_text(), seconds=PATIENCE)
    return "start" in notes.read_text()


# --- with MLX ------------------------------------------------------------------------------------


async def memory_limit(it: Installation) -> int:
    async with it.daemon(local=True) as daemon:
        limit: int = (await daemon.routable())["engine"]["memory"]["limit_bytes"]
    return limit


async def cached(it: Installation) -> bool:
    """Whether the second time a prompt comes, its beginning is known."""
    async with it.daemon(local=True) as daemon, aiohttp.ClientSession() as session:
        url = (await daemon.routable())["process"]["local_url"]
        for _ in range(2):
            found = await _ask(session, url, "Tell me a story. " * 40, model=TINY.name, max_tokens=2)
    return bool(found["usage"]["prompt_tokens_details"]["cached_tokens"])


async def unloaded(it: Installation) -> bool:
    """Whether a model that nobody asks for leaves memory."""
    async with it.daemon(local=True) as daemon:
        await daemon.routable()
        return await _comes(daemon, lambda document: document["models"][0]["state"] == "unloaded")


async def measured(it: Installation) -> bool:
    """Whether it measures itself while it has nothing to do."""
    async with it.daemon(local=True) as daemon:
        await daemon.routable()
        return await _comes(daemon, lambda document: document["measured"] is not None)


async def _comes(daemon: Daemon, fact: Callable[[dict[str, Any]], bool]) -> bool:
    async with asyncio.timeout(MUCH_PATIENCE):
        while not fact(await daemon.status()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return True


# --- on the command line -------------------------------------------------------------------------


async def accepted(it: Installation) -> bool:
    """Whether the configuration is taken at all."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return await asyncio.to_thread(run, ["config", "show"]) == 0


async def listed(it: Installation) -> list[str | None]:
    """Where the models are, as `models list` has it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        await asyncio.to_thread(run, ["models", "list", "--json"])
    return [model["folder"] for model in json.loads(printed.getvalue())["models"]]


async def _text(document: dict[str, Any]) -> str:
    async with aiohttp.ClientSession() as session:
        found = await _ask(session, document["process"]["local_url"], "Hi")
    text: str = found["choices"][0]["message"]["content"]
    return text


async def _ask(session: aiohttp.ClientSession, url: str, text: str, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text() if fields.get("stream") else await answer.json()
