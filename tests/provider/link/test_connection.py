"""One link against a gateway on a real socket: handshake, refusals, liveness, order of frames."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from websockets.exceptions import ConnectionClosed

from gateway_protocol.messages import (
    CloseCode,
    Drain,
    HeartbeatAck,
    NotRoutableReason,
    ProviderState,
    Refused,
    RefusedCode,
)
from gateway_protocol.session import events
from gateway_protocol.signing import verify_registration
from provider.link.backoff import Verdict
from provider.link.board import LinkStage
from provider.link.dial import DialFailed, LinkSettings, LinkTimers, dial, is_loopback
from tests.fakes.core import Core, offer, write_script
from tests.fakes.fake_gateway import FakeGateway, http_answer
from tests.fakes.waiting import eventually, send_often

# The one time that a test waits for is short, all others are as they are in life.
DEAF = LinkTimers(dead=3600.0, send=3600.0, close=0.5)
SILENT = LinkTimers(dead=1.0, look=0.1, close=0.5)
UNREGISTERED = LinkTimers(register=1.0, close=0.5)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(
        tmp_path / "script.jsonl",
        {"match": "long", "text": "x" * 400, "chars_per_token": 1, "ms_per_token": 2},
        {"text": "hello"},
    )


@pytest.mark.asyncio
async def test_registration_is_signed_and_complete(script: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-token\n")
    async with (
        FakeGateway() as gateway,
        Core(script, gateway.url, link={"token_file": token}) as core,
    ):
        link = await gateway.link()
        register = link.register
        assert register is not None
        assert verify_registration(
            register.signature,
            gateway_id="gw_test",
            gateway_url=f"ws://127.0.0.1:{gateway.port}",
            nonce="A" * 43,
            provider_id=core.provider_id,
            public_key=core.key.public_key,
        )
        assert [model.id for model in register.models] == ["qwen3-test", "gpt-oss-test", "plain-test"]
        assert register.models[0].tool_calls.model_dump() == {
            "first_turn": True,
            "multi_turn": True,
            "forced": False,
        }
        assert register.capacity.slots == 4
        assert register.active_jobs == ()
        request = gateway.requests[0]
        assert request.headers["Authorization"] == "Bearer secret-token"
        assert request.headers["Sec-WebSocket-Protocol"] == "malibu.provider.v1"
        assert "Sec-WebSocket-Extensions" not in request.headers
        beat = await link.until(events.HeartbeatReceived)
        assert beat.heartbeat.state is ProviderState.READY
        assert beat.heartbeat.slots_free == 4


@pytest.mark.asyncio
async def test_the_board_says_why_no_jobs_come(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.until(events.HeartbeatReceived)
        await link.send(
            HeartbeatAck(routable=False, reasons=(NotRoutableReason.CONTRACT_MISMATCH,), time_ms=1)
        )
        await eventually(lambda: core.board.reasons)
        document = core.board.document()
        assert document["registered"] is True
        assert document["routable"] is False
        assert document["reasons"] == ["contract_mismatch"]


@pytest.mark.asyncio
async def test_a_change_is_told_at_once(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        first = await link.until(events.HeartbeatReceived)
        assert first.heartbeat.state is ProviderState.READY
        core.jobs.pause("on battery")
        told = await link.until(events.HeartbeatReceived)
        assert told.heartbeat.state is ProviderState.PAUSED
        assert told.heartbeat.reason == "on battery"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("code", "retry_after_ms", "verdict"),
    [
        (RefusedCode.KEY_MISMATCH, None, Verdict.STOP),
        (RefusedCode.BELOW_MINIMUM_VERSION, None, Verdict.STOP),
        (RefusedCode.TOKEN_REFUSED, None, Verdict.STOP),
    ],
)
async def test_a_refusal_stops_and_names_its_code(
    script: Path, code: RefusedCode, retry_after_ms: int | None, verdict: Verdict
) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.dialled()
        await link.challenge()
        await link.until(events.RegistrationReceived)
        await link.send(Refused(code=code, message="no", retry_after_ms=retry_after_ms))
        async with asyncio.timeout(60):
            await core.link_task
        assert core.end is not None
        assert core.end.verdict is verdict
        assert core.end.reason == f"refused_{code.value}"
        assert core.board.stage is LinkStage.STOPPED
        assert core.board.document()["last_error"] == f"refused_{code.value}: no"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "code", [CloseCode.MALFORMED, CloseCode.REFUSED, CloseCode.VERSION, CloseCode.REPLACED]
)
async def test_close_codes_that_stop(script: Path, code: int) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        await link.socket.close(code, "because")
        async with asyncio.timeout(60):
            await core.link_task
        assert core.end is not None
        assert (core.end.reason, core.end.detail) == (f"close_{code}", "because")


@pytest.mark.asyncio
async def test_a_gateway_of_another_version_is_told_so(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.dialled()
        await link.challenge(protocol_versions=(7,))
        assert await link.closed() == CloseCode.VERSION
        async with asyncio.timeout(60):
            await core.link_task
        assert core.end is not None
        assert core.end.reason == "unsupported_version"


@pytest.mark.asyncio
async def test_silence_ends_the_link(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url, timers=SILENT, chance=lambda: 0.0) as core:
        await gateway.link()
        # A half-open socket: nobody reads it, nobody answers, and no one says goodbye.
        await gateway.dialled()
        assert core.board.last_error is not None
        assert core.board.last_error.startswith("silent")


@pytest.mark.asyncio
async def test_a_gateway_that_never_registers_us_is_left(script: Path) -> None:
    async with (
        FakeGateway() as gateway,
        Core(script, gateway.url, timers=UNREGISTERED, chance=lambda: 0.0) as core,
    ):
        link = await gateway.dialled()
        await link.challenge()
        await gateway.dialled()
        assert core.board.last_error is not None
        assert core.board.last_error.startswith("register_timeout")


@pytest.mark.asyncio
async def test_a_send_without_progress_ends_the_link(script: Path, tmp_path: Path) -> None:
    timers = LinkTimers(send=0.5, close=0.5)
    big = write_script(tmp_path / "big.jsonl", {"text": "y" * 40_000_000, "chars_per_token": 60_000})
    async with FakeGateway() as gateway, Core(big, gateway.url, timers=timers, chance=lambda: 0.0) as core:
        link = await gateway.link()
        await link.send(offer("j1"))
        # The test reads nothing more: the socket's buffers fill, and the send stands still.
        await gateway.dialled()
        assert core.board.last_error is not None
        assert core.board.last_error.startswith("send_timeout")


@pytest.mark.asyncio
async def test_control_frames_overtake_data(script: Path, tmp_path: Path) -> None:
    long = write_script(tmp_path / "long.jsonl", {"text": "z" * 3_000_000, "chars_per_token": 30_000})
    async with FakeGateway() as gateway, Core(long, gateway.url) as core:
        link = await gateway.link()
        link.acknowledging = False
        await link.send(offer("j1"))
        await link.until(events.ChunkReceived)
        await eventually(lambda: core.jobs.outbox_bytes > 2_500_000)
        core.jobs.drain_requested(None)
        frames_before = len(link.received)
        await link.until(events.DrainingReceived)
        # Nearly three megabytes of chunks wait; the frame came after what was in the socket already.
        assert len(link.received) - frames_before < 70


@pytest.mark.asyncio
async def test_malformed_and_unknown_frames_are_survived(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url):
        link = await gateway.link()
        await link.socket.send("{")
        await link.socket.send(json.dumps({"type": "news_from_the_future", "x": 1}))
        await link.socket.send(json.dumps({"type": "job_ack", "job_id": 5}))
        await link.socket.send(b"\x00")
        codes = [(await link.until(events.NackReceived)).nack.code.value for _ in range(3)]
        assert codes == ["not_json", "malformed", "malformed"]
        await link.send(offer("j1"))
        assert (await link.until(events.JobEnded)).terminal.type == "job_completed"


@pytest.mark.asyncio
async def test_a_gateway_that_asks_and_reads_nothing_loses_the_link(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url, timers=DEAF):
        link = await gateway.link()
        cancel = '{"type": "job_cancel", "job_id": "%s", "attempt": 1, "reason": "x"}' % ("j" * 128)
        with pytest.raises(ConnectionClosed):
            await send_often(link.socket, cancel)
        link = await gateway.link()
        await link.send(offer("j1"))
        assert (await link.until(events.JobEnded)).terminal.type == "job_completed"


@pytest.mark.asyncio
async def test_a_frame_over_sixteen_mebibytes_ends_the_link(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url) as core:
        link = await gateway.link()
        try:
            await link.socket.send("x" * (17 * 1024 * 1024))
            code = await link.closed()
        except ConnectionClosed:
            code = link.socket.close_code or 1006
        assert code == CloseCode.TOO_BIG
        await eventually(lambda: core.board.stage is LinkStage.WAITING)
        reconnect_in = core.board.document()["reconnect_in_s"]
        assert reconnect_in > 55


@pytest.mark.asyncio
async def test_a_frame_of_sixteen_mebibytes_passes(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url):
        link = await gateway.link()
        text = json.dumps({"type": "unknown_but_large", "x": ""})
        await link.socket.send(text[:-2] + "x" * (16 * 1024 * 1024 - len(text)) + text[-2:])
        await link.send(offer("j1"))
        await link.until(events.JobEnded)


@pytest.mark.asyncio
async def test_the_gateway_asks_to_drain(script: Path) -> None:
    async with FakeGateway() as gateway, Core(script, gateway.url):
        link = await gateway.link()
        await link.send(offer("j1", "long"))
        await link.until(events.JobWasAccepted)
        await link.send(Drain(deadline_ms=5_000))
        draining = await link.until(events.DrainingReceived)
        assert draining.draining.in_flight == 1
        ended = await link.until(events.JobEnded)
        assert ended.terminal.type == "job_completed"


# --- dialling ------------------------------------------------------------------------------------


async def end_of_dial(settings: LinkSettings) -> tuple[Verdict, str]:
    with pytest.raises(DialFailed) as failed:
        await dial(settings)
    return failed.value.end.verdict, failed.value.end.reason


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "verdict"),
    [(401, Verdict.STOP), (403, Verdict.STOP), (404, Verdict.WAIT), (503, Verdict.RETRY)],
)
async def test_an_upgrade_refused(status: int, verdict: Verdict) -> None:
    async with FakeGateway(answer=http_answer(status)) as gateway:
        assert await end_of_dial(LinkSettings(gateway.url)) == (verdict, f"http_{status}")


@pytest.mark.asyncio
async def test_redirects_are_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    async with (
        FakeGateway() as elsewhere,
        FakeGateway(answer=http_answer(307, Location=elsewhere.url)) as gateway,
    ):
        settings = LinkSettings(gateway.url, token_file=token)
        assert await end_of_dial(settings) == (Verdict.WAIT, "http_307")
        assert elsewhere.requests == []


@pytest.mark.asyncio
async def test_a_server_of_another_protocol() -> None:
    async with FakeGateway(subprotocols=[]) as gateway:
        verdict, reason = await end_of_dial(LinkSettings(gateway.url))
        assert (verdict, reason) == (Verdict.WAIT, "no_subprotocol")


@pytest.mark.asyncio
async def test_nobody_listens() -> None:
    async with FakeGateway() as gateway:
        url = gateway.url
    assert await end_of_dial(LinkSettings(url)) == (Verdict.RETRY, "unreachable")


@pytest.mark.asyncio
async def test_plain_text_only_to_this_machine() -> None:
    settings = LinkSettings("ws://192.0.2.1/v1/provider")
    assert await end_of_dial(settings) == (Verdict.STOP, "insecure_url")


@pytest.mark.asyncio
async def test_the_token_file_is_read_at_each_dial(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with FakeGateway(answer=http_answer(401)) as gateway:
        settings = LinkSettings(gateway.url, token_file=token)
        assert await end_of_dial(settings) == (Verdict.STOP, "token_file")
        token.write_text("one")
        assert await end_of_dial(settings) == (Verdict.STOP, "http_401")
        token.write_text("two")
        await end_of_dial(settings)
        assert [r.headers["Authorization"] for r in gateway.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.asyncio
async def test_certificates_are_verified(tmp_path: Path) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        settings = LinkSettings(f"wss://127.0.0.1:{port}/v1/provider")
        assert await end_of_dial(settings) == (Verdict.WAIT, "tls")
    finally:
        server.close()
        await server.wait_closed()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody vouches for, and its key, as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    return folder / "cert.pem", folder / "key.pem"


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"))
    assert not any(is_loopback(host) for host in ("", "example.org", "192.168.1.1", "localhost.example.org"))
