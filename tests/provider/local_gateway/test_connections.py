"""Connections: too many, idle, slow, broken; each its own refusal, others undisturbed."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest

from provider.local_gateway.connections import raise_file_limit
from provider.local_gateway.server import LocalGateway
from provider.local_gateway.settings import Caps
from tests.fakes.fake_provider import FakeJob, FakeProvider
from tests.provider.local_gateway.conftest import StartGateway, Stream, chat, eventually, stream

PIECE = "x" * 60_000
HUGE_PIECES = 100


async def connect(gateway: LocalGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gateway.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Status and error of a whole response, after which the connection is closed."""
    raw = await reader.read()
    head, _, body = raw.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert f"x-request-id: {document['error']['request_id']}".encode() in head
    return int(head.split()[1]), document["error"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01",  # a TLS hello
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_the_envelope(gateway: LocalGateway, sent: bytes) -> None:
    reader, writer = await connect(gateway)
    writer.write(sent)
    status, error = await answer(reader)
    assert (status, error["code"]) == (400, "invalid_request")
    writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "headers", "told"),
    [
        (b"/" + b"x" * 9000, b"", "8190 bytes"),
        (b"/v1/models", b"Authorization: Bearer " + b"s3cret" * 2000 + b"\r\n", "8190 bytes"),
        (b"/v1/models", b"x" * 9000 + b": y\r\n", "8190 bytes"),
        (b"/v1/models", b"".join(b"x-%d: y\r\n" % number for number in range(300)), "more headers"),
    ],
    ids=["path", "value", "name", "many"],
)
async def test_a_head_that_is_too_large_is_told_as_that(
    gateway: LocalGateway, path: bytes, headers: bytes, told: str
) -> None:
    reader, writer = await connect(gateway)
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n")
    status, error = await answer(reader)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", None)
    assert told in error["message"]
    assert "s3cret" not in error["message"]
    writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/nowhere"])
async def test_an_expectation_that_nobody_knows_is_refused_in_the_envelope(
    gateway: LocalGateway, path: bytes
) -> None:
    reader, writer = await connect(gateway)
    head = (
        b" HTTP/1.1\r\nHost: localhost\r\nExpect: miracles\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    )
    writer.write(b"POST " + path + head + b"{}")
    status, error = await answer(reader)
    assert (status, error["code"]) == (400, "invalid_request")
    assert "Expect" in error["message"]
    writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/explain"])
async def test_a_body_that_is_held_back_is_asked_for_only_if_it_is_wanted(
    gateway: LocalGateway, path: bytes
) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    reader, writer = await connect(gateway)
    writer.write(head % 9_000_000)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")
    writer.close()
    reader, writer = await connect(gateway)
    writer.write(head % 2)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400 ")
    writer.close()


@pytest.mark.asyncio
async def test_a_body_that_is_not_what_its_headers_say_leaves_no_traceback(
    gateway: LocalGateway, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = await connect(gateway)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
    writer.write(head + b"Content-Length: 8\r\n\r\nnot gzip")
    status, error = await answer(reader)
    assert (status, error["code"]) == (400, "invalid_request")
    writer.close()
    assert not caplog.records
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.asyncio
async def test_a_head_that_never_ends(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(timers={"request_head": 1.0})
    reader, writer = await connect(gateway)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    status, error = await answer(reader)
    assert (status, error["code"]) == (408, "invalid_request")
    writer.close()
    async with http.get(f"{gateway.url}/health") as response:
        assert response.status == 200


@pytest.mark.asyncio
async def test_a_body_that_never_ends(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(timers={"request_body": 0.05})
    reader, writer = await connect(gateway)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Length: 100\r\n\r\n{"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("most", "comers"), [(50, 200), pytest.param(500, 1000, marks=pytest.mark.slow)])
async def test_the_connection_idle_longest_makes_room(
    start_gateway: StartGateway, http: aiohttp.ClientSession, most: int, comers: int
) -> None:
    gateway = await start_gateway(caps=Caps(connections=most))
    raise_file_limit(3 * comers)
    go = asyncio.Event()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await go.wait()
        await job.text("undisturbed")
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        url = f"{gateway.url}/v1/chat/completions"
        async with http.post(url, json=chat(stream=True)) as running:
            idle = [await connect(gateway) for _ in range(comers)]
            try:
                status, error = await answer(idle[0][0])
                assert (status, error["code"]) == (503, "provider_overloaded")
                go.set()
                assert (await stream(http, gateway)).text == "undisturbed"
                assert Stream(await running.read()).text == "undisturbed"
            finally:
                for _, writer in idle:
                    writer.close()
        assert len(provider.jobs) == 2


async def ask_without_reading(gateway: LocalGateway) -> socket.socket:
    """A buyer with the smallest receive buffer there is, whose answer is on its way."""
    host, port = gateway.url.removeprefix("http://").split(":")
    buyer = socket.socket()
    buyer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    buyer.setblocking(False)
    await asyncio.get_running_loop().sock_connect(buyer, (host, int(port)))
    body = json.dumps(chat()).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(buyer, head.encode() + body)
    return buyer


async def huge(job: FakeJob) -> None:
    await job.accept()
    await job.begin()
    for _ in range(HUGE_PIECES):
        await job.text(PIECE)
    await job.complete()


@pytest.mark.asyncio
async def test_a_whole_answer_is_not_cut_for_a_newcomer_however_slowly_it_is_read(
    start_gateway: StartGateway,
) -> None:
    gateway = await start_gateway(caps=Caps(connections=2))
    async with FakeProvider(gateway.link_url, behave=huge) as provider:
        buyer = await ask_without_reading(gateway)
        job = await provider.offered()
        await provider.until(lambda: job.terminal is not None)
        for _ in range(20):
            reader, writer = await connect(gateway)
            status, error = await answer(reader)
            assert (status, error["code"]) == (503, "provider_overloaded")
            writer.close()
        text, loop = b"", asyncio.get_running_loop()
        while not text.endswith(b"}"):
            text += await loop.sock_recv(buyer, 1024 * 1024)
        content = json.loads(text.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]
        assert content == PIECE * HUGE_PIECES
        buyer.close()


@pytest.mark.asyncio
async def test_an_answer_that_nobody_reads_is_given_up(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(timers={"delivery": 0.2})
    async with FakeProvider(gateway.link_url, behave=huge):
        buyer = await ask_without_reading(gateway)
        await eventually(lambda: gateway.connection_count == 2)
        await eventually(lambda: gateway.connection_count == 1)
        buyer.close()


@pytest.mark.asyncio
async def test_when_nobody_is_idle_the_newcomer_is_turned_away(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(caps=Caps(connections=1))
    async with FakeProvider(gateway.link_url):
        reader, writer = await connect(gateway)
        status, error = await answer(reader)
        assert (status, error["code"], error["retryable"]) == (503, "provider_overloaded", True)
        writer.close()
