"""A provider changes its key in mid-answer: the gateway takes the new one, old receipts stay verifiable."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_protocol.receipts import read_receipt, verify_receipt
from provider.system.identity import load_identity
from tests.e2e.processes import Buyer, Daemon, Two, masked, write_script

LINES: tuple[dict[str, Any], ...] = (
    {"match": "long", "text": "one token after another " * 40, "chars_per_token": 2, "ms_per_token": 5},
    {"text": "hello"},
)


async def keys_of(two: Two) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{two.gateway.url}/v1/providers/keys") as response,
    ):
        keys: dict[str, Any] = await response.json()
        return keys


def receipt_of(buyer: Buyer) -> str:
    (receipt,) = [event["malibu"]["receipt"] for event in buyer.events if "malibu" in event]
    return str(receipt)


@pytest.mark.asyncio
@pytest.mark.slow
async def test_rotation_in_mid_answer(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        reference = Buyer(two.gateway.url, "long")
        await reference.done()
        before = (await two.daemon.facts())["process"]
        running = Buyer(two.gateway.url, "long")
        await running.seen(5)
        rotated = await two.daemon.control("rotate-key")
        await two.daemon.linked(2)
        after = (await two.daemon.facts())["process"]
        assert after["provider_id"] == before["provider_id"] == rotated["provider_id"]
        assert after["key_id"] == rotated["key_id"] != before["key_id"]
        assert masked(await running.done()) == masked(reference.text)
        assert read_receipt(receipt_of(reference))[0] == before["key_id"]
        assert read_receipt(receipt_of(running))[0] == after["key_id"]
        keys = await keys_of(two)
        for buyer in (reference, running):
            assert verify_receipt(receipt_of(buyer), keys).provider_id == after["provider_id"]
        # The consent is still shown, to a gateway that has long taken the new key.
        two.relay.cut()
        await two.daemon.linked(3)
        assert "[DONE]" in await Buyer(two.gateway.url, "hi").done()
        stored = json.loads((two.daemon.home / "identity.json").read_text())
        assert stored["previous"]["public_key"] != ""


@pytest.mark.asyncio
async def test_a_stranger_with_the_same_name_is_refused(tmp_path: Path) -> None:
    async with Two(tmp_path, *LINES) as two:
        name = json.loads((two.daemon.home / "identity.json").read_text())["provider_id"]
        home = tmp_path / "impostor"
        home.mkdir()
        load_identity(home)
        (home / "identity.json").write_text(json.dumps({"provider_id": name, "previous": None}))
        with Daemon(home, write_script(home / "script", *LINES), two.gateway.port) as impostor:
            assert await asyncio.to_thread(impostor.end) == 1
            assert "key_mismatch" in impostor.lines[-1]
        assert (await two.daemon.facts())["link"]["routable"] is True
