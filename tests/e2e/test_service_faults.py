"""`start --service` against faults that no restart cures: it stays, says why, asks seldom, and comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_protocol.messages import CloseCode, Refused, RefusedCode
from gateway_protocol.session import events
from tests.cli.processes import command, free_port
from tests.e2e.processes import MODEL, Buyer, Daemon, Gateway, write_script
from tests.fakes.core import offer
from tests.fakes.fake_gateway import FakeGateway, FakeLink
from tests.fakes.relay import Relay

ANSWER = {"text": "Here again."}
DONE = '"finish_reason":"stop"'


def configured(folder: Path, config: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(config)
    return folder


@asynccontextmanager
async def gateway_of(folder: Path, config: str, *flags: str) -> AsyncIterator[Gateway]:
    with Gateway(configured(folder, config), *flags) as gateway:
        await asyncio.to_thread(gateway.ready)
        yield gateway


def put(file: Path, text: str) -> None:
    """Write a file in one step, as an editor does: nobody sees it half made."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_text(text)
    fresh.replace(file)


def service(folder: Path, port: int, config: str = "") -> Daemon:
    return Daemon(folder / "daemon", write_script(folder, ANSWER), port, config=config, service=True)


async def idle(daemon: Daemon, words: str) -> dict[str, Any]:
    """Wait until it is idle for this reason, and hold what its owner sees of that."""

    def is_so(facts: dict[str, Any]) -> bool:
        process = facts["process"]
        return process["state"] == "idle" and words in process["reason"]

    facts = await until_up(daemon, is_so)
    reason = facts["process"]["reason"]
    assert "\n" not in reason
    await told(daemon, lambda shown: shown.splitlines()[0] == f"not serving: {reason}")
    await told(daemon, lambda shown: json.loads(shown)["process"]["reason"] == reason, "--json")
    assert daemon.process.poll() is None
    return facts


async def told(daemon: Daemon, fact: Callable[[str], bool], *flags: str) -> None:
    """Wait until `status` shows it: a daemon that asks again now and then isn't idle at each moment."""
    async with asyncio.timeout(120):
        while True:
            shown = await asyncio.to_thread(command, daemon.home, "status", *flags)
            assert shown.returncode == 0
            if fact(shown.stdout):
                return


async def until_up(daemon: Daemon, fact: Any) -> dict[str, Any]:
    """As `Daemon.until`, from the process's first moment on: its socket may not be there yet."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await daemon.until(fact, seconds=60)
            except aiohttp.ClientConnectionError:
                assert daemon.process.poll() is None
                await asyncio.sleep(0.05)


async def serves(daemon: Daemon, gateway: Gateway) -> None:
    await until_up(daemon, lambda facts: facts["link"] is not None and facts["link"]["routable"])
    assert DONE in await Buyer(gateway.url, "hi").done()


async def ends_well(daemon: Daemon) -> None:
    stopped = await asyncio.to_thread(command, daemon.home, "stop")
    assert stopped.returncode == 0
    assert await asyncio.to_thread(daemon.end) == 0


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_key_that_is_not_allowed_then_is_then_is_revoked(tmp_path: Path) -> None:
    config = tmp_path / "gateway" / "config.toml"
    listed = '[local_gateway]\nprovider_keys = ["{}"]\n'
    async with gateway_of(tmp_path / "gateway", listed.format("another")) as gateway:
        # The gateway's owner changes the list; nothing changes here, so only time can tell.
        with service(tmp_path, gateway.port, "[gateway]\nrefused_retry_seconds = 2\n") as daemon:
            await idle(daemon, "refused_key_not_allowed: this key is not on the gateway's list")
            assert (await Buyer(gateway.url, "hi").refusal())["code"] == "model_not_found"
            shown = await asyncio.to_thread(command, daemon.home, "keys", "show", "--json")
            key_id = json.loads(shown.stdout)["key_id"]
            put(config, listed.format(key_id))
            await serves(daemon, gateway)

            put(config, listed.format("another"))
            facts = await daemon.until(
                lambda facts: facts["link"]["reasons"] == ["key_not_allowed"], seconds=60
            )
            assert facts["health"]["summary"].startswith("connected but gets no jobs: ")
            assert "(key_not_allowed)" in facts["health"]["summary"]
            assert (await Buyer(gateway.url, "hi").refusal())["code"] == "no_provider_available"
            links = facts["link"]["links"]
            put(config, listed.format(key_id))
            await serves(daemon, gateway)
            assert (await daemon.facts())["link"]["links"] == links  # it stayed connected all the time
            await ends_well(daemon)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_token_that_is_missing_then_wrong_then_right(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text("right\n")
    config = f'[local_gateway]\nprovider_tokens_file = "{tokens}"\n'
    async with gateway_of(tmp_path / "gateway", config) as gateway, Relay(gateway.port) as relay:
        with service(tmp_path, relay.port, f'[gateway]\ntoken_file = "{token}"\n') as daemon:
            await idle(daemon, f"gateway.token_file: no such file: {token}")
            assert relay.connections == 0
            put(token, "wrong\n")
            await idle(daemon, "refused_token_refused: this gateway asks for a provider token")
            # One attempt for each change of the file, and none in between, however long it takes.
            assert relay.connections == 1
            put(token, "wrong again\n")
            async with asyncio.timeout(60):
                while relay.connections < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            await idle(daemon, "refused_token_refused")
            assert relay.connections == 2
            put(token, "right\n")
            await serves(daemon, gateway)
            assert relay.connections == 3
            await ends_well(daemon)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_below_the_gateways_minimum_version(tmp_path: Path) -> None:
    port = str(free_port())
    raised = '[local_gateway]\nminimum_version = "99.0"\n'
    async with gateway_of(tmp_path / "gateway", raised, "--port", port) as gateway:
        with service(tmp_path, gateway.port) as daemon:
            facts = await until_up(daemon, lambda facts: facts["link"] and facts["link"]["reasons"])
            assert facts["link"]["reasons"] == ["below_minimum_version"]
            assert facts["link"]["minimum_version"] == "99.0"
            shown = await asyncio.to_thread(command, daemon.home, "status")
            assert shown.returncode == 0
            summary = shown.stdout.splitlines()[0]
            assert summary.startswith("connected but gets no jobs: this version is too old for the gateway")
            assert (await Buyer(gateway.url, "hi").refusal())["code"] == "no_provider_available"
            assert (await daemon.facts())["link"]["attempts"] == 1
            gateway.process.terminate()
            assert await asyncio.to_thread(gateway.end) == 0
            async with gateway_of(tmp_path / "gateway", "", "--port", port) as lenient:
                await serves(daemon, lenient)
                await ends_well(daemon)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_gateway_that_refuses_an_old_version(tmp_path: Path) -> None:
    async def refuse(link: FakeLink) -> None:
        refusal = Refused(code=RefusedCode.BELOW_MINIMUM_VERSION, message="at least 99.0 is needed")
        await link.send(refusal)
        await link.socket.close(CloseCode.VERSION)

    async with FakeGateway() as gateway:
        with service(tmp_path, gateway.port) as daemon:
            await refuse(await gateway.dialled(seconds=60))
            await idle(daemon, "refused_below_minimum_version: at least 99.0 is needed")
            assert len(gateway.requests) == 1
            put(daemon.home / "config.toml", "[engine]\nslots = 2\n")
            link = await gateway.link(seconds=60)
            assert len(gateway.requests) == 2
            await link.send(offer("job_1", model=MODEL))
            ended = await link.until(events.JobEnded, seconds=60)
            assert ended.terminal.type == "job_completed"


@pytest.mark.asyncio
async def test_a_script_that_appears(tmp_path: Path) -> None:
    async with gateway_of(tmp_path / "gateway", "") as gateway:
        script = tmp_path / "script.jsonl"
        with Daemon(tmp_path / "daemon", script, gateway.port, service=True) as daemon:
            await idle(daemon, f"engine.script: no such file: {script}")
            write_script(tmp_path, ANSWER)
            await serves(daemon, gateway)
            await ends_well(daemon)


@pytest.mark.asyncio
@pytest.mark.parametrize("as_service", [True, False])
async def test_a_configuration_that_changes_while_it_serves_disturbs_nothing(
    tmp_path: Path, as_service: bool
) -> None:
    async with gateway_of(tmp_path / "gateway", "") as gateway:
        script = write_script(tmp_path, ANSWER)
        with Daemon(tmp_path / "daemon", script, gateway.port, service=as_service) as daemon:
            await serves(daemon, gateway)
            config = daemon.home / "config.toml"

            async def remark() -> str | None:
                found: str | None = (await daemon.facts())["process"]["config_remark"]
                return found

            assert await remark() is None
            put(config, "[engine]\nslotz = 3\n")
            assert "engine.slotz: unknown key" in (await remark() or "")
            shown = await asyncio.to_thread(command, daemon.home, "status")
            assert "  configuration  can't be used any more, the earlier one stays in force: " in shown.stdout
            assert DONE in await Buyer(gateway.url, "hi").done()
            put(config, "[engine]\nslots = 3\n")
            assert await remark() == "has changed; in force after a restart"
            put(config, "# only a remark\n")
            assert await remark() is None
            assert MODEL in {model["id"] for model in (await daemon.facts())["models"]}
            await ends_well(daemon)


@pytest.mark.asyncio
async def test_one_that_was_replaced_does_not_take_turns_with_its_replacer(tmp_path: Path) -> None:
    async def replace(link: FakeLink) -> None:
        await link.socket.close(CloseCode.REPLACED, "a newer session of this identity")

    async with FakeGateway() as gateway:
        config = "[gateway]\nrefused_retry_seconds = 1\n"
        with service(tmp_path, gateway.port, config) as daemon:
            await replace(await gateway.link(seconds=60))
            began = (await idle(daemon, "close_4009"))["process"]["uptime_s"]
            # Three times as long as a refused one would wait.
            await daemon.until(lambda facts: facts["process"]["uptime_s"] > began + 3)
            assert len(gateway.requests) == 1
            put(daemon.home / "config.toml", f"{config}[engine]\nslots = 2\n")
            await gateway.link(seconds=60)
