"""API keys, limits, TLS: who may use the gateway, how much, and over what."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from provider.local_gateway.api_keys import add_key, load_keys
from provider.local_gateway.server import GatewayConfigError, LocalGateway, create_gateway
from provider.local_gateway.settings import Access, Caps, GatewaySettings
from tests.fakes.fake_provider import MODEL, FakeProvider, answering, stuck
from tests.provider.local_gateway.conftest import (
    HI,
    StartGateway,
    chat,
    openai_client,
    refusal,
    refused,
    stream,
)

CREATED = "2026-01-31T10:00:00Z"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_that_are_added_at_once_are_all_kept(keys_file: Path) -> None:
    def add(number: int) -> str:
        return add_key(keys_file, f"key{number}", created=CREATED)

    with ThreadPoolExecutor(24) as together:
        secrets = list(together.map(add, range(24)))
    ring = load_keys(keys_file)
    assert [key for secret in secrets if (key := ring.find(secret)) is None] == []
    assert [path.name for path in keys_file.parent.iterdir()] == [keys_file.name]


@pytest.mark.asyncio
async def test_keys_are_asked_for_where_there_are_some(
    keys_file: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    key = add_key(keys_file, "laptop", created=CREATED)
    gateway = await start_gateway(access=Access(keys_file=keys_file), secret=b"s" * 32)
    async with FakeProvider(gateway.link_url) as provider:
        for headers in ({}, bearer("wrong"), {"Authorization": f"Basic {key}"}, bearer("")):
            got = await refusal(http, gateway, chat(), **headers)
            assert (got.status, got.error["code"], got.error["param"]) == (401, "invalid_api_key", None)
            async with http.get(f"{gateway.url}/v1/models", headers=headers) as response:
                assert (await refused(response)).status == 401
        async with openai_client(gateway, api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with openai_client(gateway, api_key=key) as client:
            assert (await client.models.list()).data[0].id == MODEL
            await client.chat.completions.create(model=MODEL, messages=HI)  # type: ignore[arg-type]
        # What needs no key: health, status, the keys that verify receipts.
        for path in ("/health", "/v1/status", "/v1/providers/keys"):
            async with http.get(gateway.url + path) as response:
                assert response.status == 200
        tenant = provider.jobs[0].offer.tenant
    assert tenant is not None
    assert len(tenant) == 64
    assert key not in tenant


@pytest.mark.asyncio
async def test_tenants_are_lasting_and_tell_keys_apart(
    keys_file: Path, tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    keys = [add_key(keys_file, name, created=CREATED) for name in ("a", "b")]
    tenants: list[list[str | None]] = []
    for _ in range(2):
        gateway = await start_gateway(access=Access(keys_file=keys_file), state_file=tmp_path / "gateway.db")
        async with FakeProvider(gateway.link_url) as provider:
            for key in keys:
                url = f"{gateway.url}/v1/chat/completions"
                async with http.post(url, json=chat(user="same"), headers=bearer(key)) as response:
                    assert response.status == 200
            tenants.append([job.offer.tenant for job in provider.jobs])
        await gateway.aclose()
    assert tenants[0] == tenants[1]
    assert tenants[0][0] != tenants[0][1]


@pytest.mark.asyncio
async def test_rate_limit_of_a_key(
    keys_file: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    limited, free = (add_key(keys_file, name, created=CREATED) for name in ("limited", "free"))
    edit(keys_file, "[keys.limited]", "[keys.limited]\nrequests_per_minute = 2")
    gateway = await start_gateway(access=Access(keys_file=keys_file))
    async with FakeProvider(gateway.link_url):
        statuses = []
        for key in (limited, limited, limited, free):
            url = f"{gateway.url}/v1/chat/completions"
            async with http.post(url, json=chat(), headers=bearer(key)) as response:
                statuses.append(response.status)
                if response.status == 429:
                    got = await refused(response)
                    assert (got.error["code"], got.error["retryable"]) == ("rate_limited", True)
                    assert 1 <= int(got.headers["Retry-After"]) <= 30
    assert statuses == [200, 200, 429, 200]


@pytest.mark.asyncio
async def test_one_key_may_not_take_every_slot(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(caps=Caps(streams_per_key=1))
    async with FakeProvider(gateway.link_url, behave=stuck) as provider:
        running = asyncio.create_task(stream(http, gateway))
        await provider.offered()
        got = await refusal(http, gateway, chat())
        assert (got.status, got.error["code"]) == (429, "rate_limited")
        other = asyncio.create_task(refusal(http, gateway, chat(), **bearer("another")))
        await provider.offered(2)
        running.cancel()
        other.cancel()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::"])
def test_without_keys_only_loopback_may_be_bound(host: str) -> None:
    with pytest.raises(GatewayConfigError, match="gateway key add NAME"):
        create_gateway(GatewaySettings(host=host))


def test_bad_keys_file_and_half_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(GatewayConfigError, match=r"typo\.toml"):
        create_gateway(GatewaySettings(access=Access(keys_file=tmp_path / "typo.toml")))
    with pytest.raises(GatewayConfigError, match="both"):
        create_gateway(GatewaySettings(tls_cert=tmp_path / "cert.pem"))
    with pytest.raises(GatewayConfigError, match=r"cert\.pem"):
        create_gateway(GatewaySettings(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"))


@pytest.mark.asyncio
async def test_every_address_with_keys(
    keys_file: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    key = add_key(keys_file, "a", created=CREATED)
    gateway = await start_gateway(host="0.0.0.0", access=Access(keys_file=keys_file))
    local = gateway.url.replace("0.0.0.0", "127.0.0.1")
    for host, status in (("192.168.7.7:80", 200), ("evil.example", 403)):
        headers = {**bearer(key), "Host": host}
        async with http.get(f"{local}/v1/models", headers=headers) as response:
            assert response.status == status


@pytest.mark.asyncio
async def test_port_that_is_taken(gateway: LocalGateway) -> None:
    port = int(gateway.url.rsplit(":", 1)[1])
    second = create_gateway(GatewaySettings(port=port))
    with pytest.raises(OSError, match=r"[Aa]ddress already in use"):
        await second.start()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = folder / "cert.pem", folder / "key.pem"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path


@pytest.mark.asyncio
async def test_tls(tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    cert, key = self_signed(tmp_path)
    gateway = await start_gateway(tls_cert=cert, tls_key=key)
    assert gateway.url.startswith("https://")
    assert gateway.link_url.startswith("wss://")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await http.get(f"{gateway.url}/health")
    trusting = ssl.create_default_context(cafile=cert)
    async with http.get(f"{gateway.url}/health", ssl=trusting) as response:
        assert response.status == 200
    async with FakeProvider(gateway.link_url, ssl_context=trusting) as provider:
        assert provider.registered
        url = f"{gateway.url}/v1/chat/completions"
        async with http.post(url, json=chat(), ssl=trusting) as response:
            assert response.status == 200
        provider.behave = answering(*["x" * 60_000] * 50)
        for streamed in (False, True):
            async with http.post(url, json=chat(stream=streamed), ssl=trusting) as response:
                assert len(await response.read()) > 3_000_000
    # Plain HTTP to the TLS port ends quickly and disturbs nobody.
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rsplit(":", 1)[1]))
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
