"""The link between two processes is cut, frozen and half-closed: the buyer's stream doesn't show it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_protocol.limits import HALF_OPEN_NOTICED_MS
from gateway_protocol.receipts import verify_receipt
from tests.e2e.processes import Buyer, Daemon, Two, masked, write_script

TEXT = "The quick brown fox jumps over the lazy dog, 漢字 and 🙂 and all. " * 12
CALL = '<tool_call>\n{"name": "save", "arguments": {"text": "' + "long " * 200 + '"}}\n</tool_call>'
LINES: tuple[dict[str, Any], ...] = (
    {"match": "call at once", "text": CALL, "chars_per_token": 3},
    {"match": "call", "text": CALL, "chars_per_token": 3, "ms_per_token": 20},
    {"match": "wait", "text": "at last", "prefill_ms": 4_000},
    {"match": "at once", "text": TEXT, "chars_per_token": 2},
    {"match": "for ever", "text": TEXT * 20, "chars_per_token": 2, "ms_per_token": 5},
    {"text": TEXT, "chars_per_token": 2, "ms_per_token": 10},
)
SAVE = {
    "type": "function",
    "function": {
        "name": "save",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


async def uncut(two: Two, content: str, **fields: Any) -> str:
    """The stream of an answer that nothing disturbs; nobody need wait for it."""
    return masked(await Buyer(two.gateway.url, content, **fields).done())


async def check_receipt(two: Two, buyer: Buyer) -> None:
    receipts = [event["malibu"]["receipt"] for event in buyer.events if "malibu" in event]
    assert len(receipts) == 1
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{two.gateway.url}/v1/providers/keys") as response,
    ):
        keys = await response.json()
    assert verify_receipt(receipts[0], keys).terminal == "completed"


async def cut_while_streaming(two: Two, buyer: Buyer, cuts: int) -> None:
    """Cut at random bytes of either direction, wait each time until the link stands again."""
    chance = random.Random(cuts)
    links = (await two.daemon.facts())["link"]["links"]
    for cut in range(1, cuts + 1):
        before = two.relay.cuts
        if cut % 3 == 1:
            two.relay.cut()
        elif cut % 3 == 2:
            two.relay.cut_after(up=chance.randrange(1, 900))
        else:
            two.relay.cut_after(down=chance.randrange(1, 300))
        async with asyncio.timeout(60):
            while two.relay.cuts == before:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await two.daemon.linked(links + cut)


@pytest.mark.asyncio
@pytest.mark.parametrize("cuts", [5, *(pytest.param(cuts, marks=pytest.mark.slow) for cuts in (1, 20))])
async def test_the_stream_is_that_of_an_uncut_run(tmp_path: Path, cuts: int) -> None:
    text = TEXT * (1 + cuts // 2)
    # The answer goes on until the last cut; the reference, to a prompt as long, needs no time.
    fast = {"match": "quick!", "text": text, "chars_per_token": 2}
    async with Two(tmp_path, fast, {"text": text, "chars_per_token": 2, "ms_per_token": 10}) as two:
        options = {"stream_options": {"include_usage": True}}
        reference = await uncut(two, "quick!", **options)
        buyer = Buyer(two.gateway.url, "slowly", **options)
        await buyer.seen(3)
        await cut_while_streaming(two, buyer, cuts)
        assert "[DONE]" not in buyer.text, "the answer ended before the cuts"
        assert masked(await buyer.done()) == reference
        assert two.relay.cuts >= cuts
        await check_receipt(two, buyer)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_tool_call_over_a_cut_link(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES, config='[tools]\nstreaming = "incremental"\n') as two:
        reference = await uncut(two, "call at once", tools=[SAVE])
        assert '"finish_reason":"tool_calls"' in reference
        buyer = Buyer(two.gateway.url, "call", tools=[SAVE])
        await buyer.seen(10)
        await cut_while_streaming(two, buyer, 3)
        assert masked(await buyer.done()) == reference
        await check_receipt(two, buyer)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_half_closed(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        reference = await uncut(two, "at once")
        buyer = Buyer(two.gateway.url, "hi")
        await buyer.seen(5)
        two.relay.half_close()
        await two.daemon.linked(2)
        assert masked(await buyer.done()) == reference


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_half_open_link_is_noticed_within_thirty_seconds(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        reference = await uncut(two, "at once")
        buyer = Buyer(two.gateway.url, "hi")
        await buyer.seen(5)
        two.relay.freeze()
        loop = asyncio.get_running_loop()
        frozen = loop.time()
        await two.daemon.until(lambda facts: not facts["link"]["connected"], seconds=45)
        assert loop.time() - frozen < HALF_OPEN_NOTICED_MS / 1000
        assert (await two.daemon.facts())["link"]["last_error"].startswith("silent")
        noticed = json.loads(await asyncio.to_thread(two.gateway.wait_for, '"link_dead"'))
        assert noticed["silent_s"] < HALF_OPEN_NOTICED_MS / 1000
        two.relay.thaw()
        await two.daemon.linked(2)
        assert masked(await buyer.done()) == reference


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_gateway_that_was_away_is_found_again(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        two.relay.refusing = True
        two.relay.cut()
        link = (await two.daemon.until(lambda facts: facts["link"]["stage"] == "waiting"))["link"]
        assert link["registered"] is False
        assert link["routable"] is False
        assert link["last_error"]
        assert link["reconnect_in_s"] is not None
        two.relay.refusing = False
        await two.daemon.linked(2)
        assert '"finish_reason":"stop"' in await Buyer(two.gateway.url, "wait").done()


@pytest.mark.asyncio
@pytest.mark.slow
async def test_killed_before_first_content_the_job_runs_elsewhere(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        other = Daemon(tmp_path / "other", write_script(tmp_path / "o", *LINES), two.gateway.port)
        with other:
            await asyncio.to_thread(other.ready)
            buyer = Buyer(two.gateway.url, "wait")
            waits = {
                asyncio.create_task(d.until(lambda facts: facts["jobs"]["running"])): d
                for d in (two.daemon, other)
            }
            (found,), others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in others:
                wait.cancel()
            busy = waits[found]
            busy.send(signal.SIGKILL)
            text = await buyer.done()
            assert buyer.status == 200
            assert '"content":"at l' in text
            assert "error" not in text
            assert text.endswith("data: [DONE]\n\n")
            survivor = other if busy is two.daemon else two.daemon
            await survivor.until(lambda facts: facts["counters"]["jobs_completed"] == 1)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_killed_after_first_content_ends_in_one_retryable_error(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES, gateway_config="[dispatch]\nresume_seconds = 1.0\n") as two:
        buyer = Buyer(two.gateway.url, "hi")
        await buyer.seen(5)
        two.daemon.send(signal.SIGKILL)
        text = await buyer.done()
        errors = [event["error"] for event in buyer.events if "error" in event]
        assert [(error["code"], error["retryable"]) for error in errors] == [("provider_disconnected", True)]
        assert 'finish_reason":"' not in text
        assert text.endswith("data: [DONE]\n\n")


@pytest.mark.asyncio
@pytest.mark.slow
async def test_a_machine_that_slept_for_forty_seconds(tmp_path: Path) -> None:
    fast = {"match": "at once", "text": TEXT * 4, "chars_per_token": 2}
    async with Two(tmp_path, fast, {"text": TEXT * 4, "chars_per_token": 2, "ms_per_token": 5}) as two:
        reference = await uncut(two, "at once")
        buyer = Buyer(two.gateway.url, "hi")
        await buyer.seen(5)
        two.daemon.send(signal.SIGSTOP)
        await asyncio.sleep(40)
        two.daemon.send(signal.SIGCONT)
        await two.daemon.linked(2)
        assert masked(await buyer.done()) == reference
        await two.daemon.until(lambda facts: facts["link"]["routable"])


@pytest.mark.asyncio
async def test_sigterm_under_load_finishes_all(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES, config="[engine]\nslots = 8\n") as two:
        reference = await uncut(two, "at once")
        buyers = [Buyer(two.gateway.url, "hi") for _ in range(8)]
        for buyer in buyers:
            await buyer.seen(3)
        two.daemon.send(signal.SIGTERM)
        await two.daemon.until(lambda facts: facts["process"]["state"] == "draining")
        refused = Buyer(two.gateway.url, "hi")
        await refused.done()
        assert refused.status == 503
        for buyer in buyers:
            assert masked(await buyer.done()) == reference
        assert await asyncio.to_thread(two.daemon.end) == 0


@pytest.mark.asyncio
@pytest.mark.slow
@pytest.mark.parametrize("second_signal", [False, True])
async def test_a_drain_cut_short_ends_each_job_in_one_error(tmp_path: Path, second_signal: bool) -> None:
    config = f"[engine]\nslots = 8\n[drain]\nseconds = {60 if second_signal else 0.2}\n"
    async with Two(tmp_path, *LINES, config=config) as two:
        buyers = [Buyer(two.gateway.url, "for ever") for _ in range(8)]
        for buyer in buyers:
            await buyer.seen(3)
        two.daemon.send(signal.SIGTERM)
        if second_signal:
            await two.daemon.until(lambda facts: facts["process"]["state"] == "draining")
            two.daemon.send(signal.SIGTERM)
        for buyer in buyers:
            text = await buyer.done()
            errors = [event for event in buyer.events if "error" in event]
            assert [event["error"]["code"] for event in errors] == ["provider_error"]
            assert errors[0]["error"]["retryable"] is True
            assert errors[0]["malibu"]["receipt"]
            assert text.endswith("data: [DONE]\n\n")
        assert await asyncio.to_thread(two.daemon.end) == 0
