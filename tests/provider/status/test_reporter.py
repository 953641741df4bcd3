"""Reports: what is in them, when they are sent, over a real socket and on a virtual clock."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway_protocol.receipts import make_status, verify_status
from gateway_protocol.signing import ProviderKey, jwks
from provider.status.reporter import Reporter, ReportSchedule, post, report_url, snapshot, state_of
from tests.fakes.virtual_clock import on_virtual_clock
from tests.provider.status.documents import WELL, document

PRESENCE = {"state": "ready", "reason": None, "slots_total": 4, "slots_free": 2, "queued": 0}


def report(presence: dict[str, Any] = PRESENCE, **changes: Any) -> dict[str, Any]:
    return snapshot(document(**changes), presence, 1_780_315_200_000)


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ("wss://api.malibu.tech/v1/provider", "https://api.malibu.tech/v1/providers/prov_x/status"),
        ("ws://127.0.0.1:8080/v1/provider", "http://127.0.0.1:8080/v1/providers/prov_x/status"),
        ("ws://[::1]:8080/elsewhere", "http://[::1]:8080/v1/providers/prov_x/status"),
    ],
)
def test_reports_go_to_the_gateway_that_is_served(gateway: str, url: str) -> None:
    assert report_url(gateway, "prov_x") == url


def test_a_report_holds_these_members_and_no_other() -> None:
    assert report() == {
        "v": 1,
        "provider_id": "prov_abcdefghijklmnopqrstuvwxyz",
        "at_ms": 1_780_315_200_000,
        "version": "0.1.0",
        "contract": "malibu",
        "uptime_s": 12.5,
        "state": "ready",
        "reason": None,
        "slots_total": 4,
        "slots_free": 2,
        "queued": 0,
        "models": [{"id": "org/model", "state": "ready"}],
        "registered": True,
        "routable": True,
        "not_routable_reasons": [],
        "engine_restarts": 0,
        "jobs": {"completed": 7, "failed": 1, "cancelled": 2, "rejected": 3},
    }


def test_nothing_of_this_machine_leaks_into_a_report() -> None:
    text = json.dumps(report(link={"last_error": "unreachable: my-mac.local"}))
    for private in ("/home/me", "4711", "my-mac", "gateway.example", "thumb", "token"):
        assert private not in text
    assert "config_file" in WELL["process"]


# --- when ----------------------------------------------------------------------------------------


def schedule(**changes: Any) -> ReportSchedule:
    return ReportSchedule(chance=lambda: 0.5, next_at=60.0, **changes)


def test_once_a_minute_and_at_each_change_of_state() -> None:
    plan = schedule(failing=False)
    plan.sent(0.0, ("ready",))
    assert not plan.due(59.9, ("ready",))
    assert plan.due(60.0, ("ready",))
    assert plan.due(0.1, ("busy",))


def test_failures_come_later_and_later_and_a_change_does_not_hammer() -> None:
    plan, now, gaps = schedule(failing=False), 0.0, []
    for _ in range(9):
        plan.failed(now)
        assert not plan.due(now, ("changed",))
        gaps.append(plan.next_at - now)
        now = plan.next_at
    assert gaps == [7.5, 15, 30, 60, 120, 240, 450, 450, 450]
    plan.sent(now, ("ready",))
    plan.failed(now)
    assert plan.next_at - now == 7.5


def test_the_first_report_waits_for_the_gateway_to_know_this_provider() -> None:
    plan = schedule()
    assert not plan.due(0.0, ("ready",))
    assert plan.due(60.0, ("ready",))
    plan.retry_now()
    assert plan.due(0.0, ("ready",))


@pytest.mark.parametrize(
    "change",
    [
        {"presence": PRESENCE | {"state": "paused", "reason": "on_battery"}},
        {"presence": PRESENCE | {"state": "paused", "reason": "low_power_mode"}},
        {"link__routable": False},
        {"models": [{"id": "org/model", "state": "loading"}]},
    ],
)
def test_what_counts_as_a_change_of_state(change: dict[str, Any]) -> None:
    assert state_of(report(**change)) != state_of(report())


def test_what_does_not() -> None:
    assert state_of(report(PRESENCE | {"slots_free": 1, "queued": 2})) == state_of(report())


class Wire:
    """Takes what a reporter sends; fails while `error` is set."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.at: list[float] = []
        self.tokens: list[str] = []
        self.changes: dict[str, Any] = {"link__registered": False, "link__routable": False}
        loop = asyncio.get_running_loop()
        self.reporter = Reporter(
            take=lambda: report(**self.changes),
            sign=json.dumps,
            send=self._send,
            schedule=ReportSchedule(chance=lambda: 0.0, next_at=60.0),
            clock=loop.time,
        )

    async def _send(self, token: str) -> str | None:
        self.at.append(round(asyncio.get_running_loop().time()))
        self.tokens.append(token)
        return self.error


@on_virtual_clock
async def test_a_life_of_reports() -> None:
    wire = Wire()
    task = asyncio.create_task(wire.reporter.run())
    await asyncio.sleep(10.5)
    assert wire.at == []
    wire.changes = {}
    await asyncio.sleep(2)
    assert wire.at == [11]
    await asyncio.sleep(120)
    assert wire.at == [11, 71, 131]
    wire.changes = {"link__routable": False}
    await asyncio.sleep(2)
    assert wire.at == [11, 71, 131, 133]
    wire.error = "HTTP 503"
    await asyncio.sleep(60 + 5 + 10 + 20 + 40)
    assert wire.at[4:] == [193, 198, 208, 228, 268]
    assert (wire.reporter.sent, wire.reporter.failed) == (4, 5)
    assert wire.reporter.document("https://x")["last_error"] == "HTTP 503"
    # The link is made again: what stood in the way may be gone.
    wire.error = None
    wire.changes = {"link__registered": False, "link__routable": False}
    await asyncio.sleep(2)
    wire.changes = {}
    await asyncio.sleep(2)
    assert len(wire.at) == 10
    assert wire.reporter.document("https://x") == {
        "url": "https://x",
        "sent": 5,
        "failed": 5,
        "last_sent_ms": 1_780_315_200_000,
        "last_error": None,
    }
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# --- over a socket -------------------------------------------------------------------------------


@asynccontextmanager
async def listening(handler: Any, **site: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{rest:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, **site).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_what_arrives_is_signed_by_the_providers_key() -> None:
    key = ProviderKey.generate()
    arrived: list[tuple[str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        arrived.append((request.content_type, await request.read()))
        return web.Response(status=204)

    async with listening(take) as address, aiohttp.ClientSession() as session:
        url = report_url(f"ws://{address}/v1/provider", "prov_x")
        assert await post(session, url, make_status(key, report())) is None
    ((kind, body),) = arrived
    assert kind == "application/jose"
    assert verify_status(body.decode("ascii"), jwks([key.public_key])) == report()


@pytest.mark.asyncio
@pytest.mark.parametrize(("status", "words"), [(503, "HTTP 503"), (403, "HTTP 403"), (307, "HTTP 307")])
async def test_a_refusal_and_a_redirect_are_failures(status: int, words: str) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Location": "http://127.0.0.1:9/"})

    async with listening(refuse) as address, aiohttp.ClientSession() as session:
        assert await post(session, f"http://{address}/x", "token") == words


@pytest.mark.asyncio
async def test_nobody_there_is_a_failure() -> None:
    async with aiohttp.ClientSession() as session:
        said = await post(session, "http://127.0.0.1:1/x", "token")
    assert said == "nothing listens there (connection refused)"


@pytest.mark.asyncio
@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_no_host_can_have_is_a_failure_like_any_other(host: str) -> None:
    async with aiohttp.ClientSession() as session:
        said = await post(session, f"http://{host}/x", "token")
    assert said == "its name is no host's name"


@pytest.mark.asyncio
async def test_one_that_hangs_up_is_a_failure_told_in_words() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, aiohttp.ClientSession() as session:
        said = await post(session, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", "token")
    assert said == "it closed the connection at once"


@pytest.mark.asyncio
async def test_plain_words_where_tls_is_expected_are_a_failure() -> None:
    async def never(request: web.Request) -> web.Response:
        raise AssertionError("nothing may arrive")

    async with listening(never) as address, aiohttp.ClientSession() as session:
        assert await post(session, f"https://{address}/x", "token") is not None


@pytest.mark.asyncio
async def test_a_certificate_of_its_own_making_is_refused(tmp_path: Path) -> None:
    async def never(request: web.Request) -> web.Response:
        raise AssertionError("nothing may arrive")

    async with listening(never, ssl_context=own_tls(tmp_path)) as address, aiohttp.ClientSession() as session:
        words = await post(session, f"https://{address}/x", "token")
    assert words == "its certificate isn't valid"


def own_tls(folder: Path) -> ssl.SSLContext:
    """A server's context with a certificate that nobody else has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "tls.pem").write_bytes(private + certificate.public_bytes(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem")
    return context
