"""The page at `/`, its figures, and `POST /v1/explain`; in a real browser where it is slow to start one."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_protocol.messages import Delta, FinishReason
from provider.local_gateway.api_keys import add_key
from provider.local_gateway.meter import SECONDS, Meter
from provider.local_gateway.server import LocalGateway
from provider.local_gateway.settings import Access
from provider.toolcalls.explain import RawOutput, explain_chunks, explain_completion
from tests.fakes.browser import Browser, chromium
from tests.fakes.fake_provider import MODEL, FakeJob, FakeProvider, stuck
from tests.provider.local_gateway.conftest import StartGateway, refused, stream

CREATED = "2026-01-31T10:00:00Z"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "get_weather"}}


def test_meter_sums_to_the_usage() -> None:
    meter = Meter()
    for second in range(10):
        meter.add(1000.0 + second, 2.0)
    meter.spread(1000.0, 1009.9, 80.0)
    values = meter.values(1010.5)
    assert len(values) == SECONDS - 1
    assert values[-10:] == [10.0] * 10
    assert sum(values) == 100.0
    assert sum(meter.values(1010.0 + SECONDS)) == 0.0
    meter.add(5.0)  # too old to be shown
    assert sum(meter.values(2000.0)) == 0.0
    meter.spread(0.0, 3000.0, 3001.0)
    assert sum(meter.values(3001.0)) == SECONDS - 1


async def live(http: aiohttp.ClientSession, gateway: LocalGateway) -> dict[str, Any]:
    async with http.get(f"{gateway.url}/v1/live") as response:
        assert response.status == 200
        document: dict[str, Any] = await response.json()
        return document


@pytest.mark.asyncio
async def test_figures(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url, speed=42.0) as provider:
        assert (await stream(http, gateway)).done
        provider.behave = stuck
        asking = asyncio.create_task(stream(http, gateway))
        await provider.offered(2)
        shown = await live(http, gateway)
        asking.cancel()
    assert (shown["running"], shown["queued"], shown["contract"], shown["open"]) == (1, 0, "malibu", True)
    assert shown["models"] == [MODEL]
    (one,) = shown["providers"]
    assert (one["id"], one["state"], one["reasons"]) == (provider.provider_id, "ready", [])
    assert (one["slots"], one["free"], one["tokens_per_s"]) == (8, 7, 42.0)
    (job,) = shown["jobs"]
    assert (job["terminal"], job["finish_reason"], job["completion_tokens"]) == ("completed", "stop", 4)
    assert job["receipt"].count(".") == 2
    assert len(shown["rate"]["tokens"]) == SECONDS - 1


@pytest.mark.asyncio
async def test_page_needs_nothing_from_outside(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with http.get(gateway.url) as response:
        assert response.content_type == "text/html"
        policy = response.headers["Content-Security-Policy"]
        html = await response.text()
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "http://" not in html
    assert "https://" not in html
    assert " style=" not in html


@pytest.mark.asyncio
async def test_page_is_for_this_machine_or_an_admin(
    tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    async def ask(gateway: LocalGateway, path: str, headers: dict[str, str]) -> int:
        async with http.get(gateway.url + path, headers=headers) as response:
            if response.status >= 400:
                await refused(response)
            return response.status

    keys = tmp_path / "keys.toml"
    user, admin = add_key(keys, "u", created=CREATED), add_key(keys, "a", created=CREATED, admin=True)
    away = {"Host": "gw.lan"}
    access = Access(keys_file=keys, hosts=frozenset({"gw.lan"}))
    closed = await start_gateway(access=access)
    password = "Basic " + base64.b64encode(f"anyone:{admin}".encode()).decode()
    for path in ("/", "/v1/live"):
        assert await ask(closed, path, {}) == 200  # here
        assert await ask(closed, path, {"X-Forwarded-For": "10.0.0.9"}) == 401
        assert await ask(closed, path, away) == 401
        assert await ask(closed, path, {**away, "Authorization": f"Bearer {user}"}) == 403
        assert await ask(closed, path, {**away, "Authorization": f"Bearer {admin}"}) == 200
        assert await ask(closed, path, {**away, "Authorization": password}) == 200
    async with http.get(closed.url, headers=away) as response:
        assert response.headers["WWW-Authenticate"].startswith("Basic ")
    opened = await start_gateway(access=Access(hosts=frozenset({"gw.lan"})))
    assert await ask(opened, "/", away) == 403


@pytest.mark.asyncio
async def test_explain_is_what_parse_prints(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    url = f"{gateway.url}/v1/explain"
    body: dict[str, Any] = {"model": MODEL, "text": CALL, "tools": [TOOL]}
    output = RawOutput(text=CALL, model=MODEL, tools=[TOOL])
    async with http.post(url, json=body) as response:
        document = await response.json()
    expected = explain_completion(output)
    for completion in (document, expected):
        completion["choices"][0]["message"]["tool_calls"][0].pop("id")  # minted anew each time
    assert document == expected
    assert document["choices"][0]["finish_reason"] == "tool_calls"
    async with http.post(url, json={**body, "stream": True, "chunk_chars": 1}) as response:
        assert len(await response.json()) == len(explain_chunks(output))
    for wrong, param in [
        ({"model": MODEL}, "text"),
        ({**body, "text": 1}, "text"),
        ({**body, "finish_reason": "x"}, "finish_reason"),
        ({**body, "chunk_chars": 0}, "chunk_chars"),
        ({**body, "text": "x" * 30_000, "chunk_chars": 1}, "chunk_chars"),
        ({**body, "more": 1}, "more"),
    ]:
        async with http.post(url, json=wrong) as response:
            got = await refused(response)
        assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_request", param)
    async with http.post(url, json={**body, "tools": [{"type": "x"}]}) as response:
        assert (await refused(response)).error["code"] == "invalid_tools"
    large = io.BytesIO(json.dumps({**body, "text": "x" * 1024 * 1024}).encode())
    async with http.post(url, data=large) as response:
        assert (await refused(response)).status == 413


async def talkative(job: FakeJob) -> None:
    await job.accept()
    await job.begin()
    await job.delta(Delta(reasoning_content="Let me think."))
    if job.request.get("tools"):
        await job.call(0, "get_weather", "{", '"city": "Rome"', "}")
        await job.complete(FinishReason.TOOL_CALLS)
    else:
        await job.text("It is ", "sunny ", "☀ <b>today</b>")
        await job.complete()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
async def test_page_in_a_browser_by_keyboard_alone(
    start_gateway: StartGateway, tmp_path: Path, width: int, dark: bool
) -> None:
    gateway = await start_gateway()
    pictures = Path(os.environ.get("TEST_ARTEFACTS", tmp_path))
    async with (
        FakeProvider(gateway.link_url, behave=talkative, speed=42.0),
        Browser(tmp_path / "profile") as browser,
    ):
        await browser.look_as(width=width, dark=dark)
        await browser.open(gateway.url + "/")
        await browser.until("document.getElementById('model').value")
        assert await browser.value("document.documentElement.scrollWidth <= innerWidth")
        # A chat streams.
        await browser.tab_to("message")
        await browser.value("document.getElementById('message').value = ''")
        await browser.type("Is it sunny?")
        await browser.press("Enter", control=True)
        await browser.until("document.getElementById('chat-note').textContent.includes('tokens/s')")
        assert await browser.value("document.querySelector('.said').textContent") == (
            "It is sunny ☀ <b>today</b>"
        )
        assert await browser.value("document.querySelector('.thought').textContent") == "Let me think."
        # A tool call appears.
        await browser.tab_to("with-tool")
        await browser.press("Space")
        await browser.tab_to("message")
        await browser.type("And in Rome?")
        await browser.tab_to("send")
        await browser.press("Enter")
        await browser.until("document.querySelector('.call')")
        await browser.until(
            "document.querySelector('.call').textContent === 'get_weather({\"city\": \"Rome\"})'"
        )
        # The plot draws, the jobs are listed, a receipt verifies.
        await browser.until("document.querySelector('#plot .line').getAttribute('d').length > 100")
        await browser.until("document.getElementById('rate-top').textContent !== '0'")
        await browser.until("document.querySelectorAll('#jobs button').length === 2")
        await browser.value("document.querySelector('#jobs button').focus()")
        await browser.press("Enter")
        await browser.until("document.getElementById('receipt').textContent.startsWith('Signature: valid')")
        # A raw output is explained.
        await browser.tab_to("explain-finish")
        await browser.tab_to("explain-stream")
        await browser.press("Tab")
        await browser.press("Enter")
        await browser.until("document.getElementById('explained').textContent.includes('tool_calls')")
        assert await browser.value("document.documentElement.scrollWidth <= innerWidth")
        ground = await browser.value("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(16, 19, 23)" if dark else "rgb(246, 247, 249)")
        await browser.picture(pictures / f"page-{width}-{'dark' if dark else 'light'}.png")
        assert browser.console == []
        assert [url for url in browser.requests if not url.startswith((gateway.url, "data:"))] == []
