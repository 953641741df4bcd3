"""Every other route, and the one envelope on every path."""

from __future__ import annotations

import aiohttp
import pytest
from yarl import URL

from gateway_protocol.messages import ModelState, ProviderState
from gateway_protocol.receipts import make_status
from gateway_protocol.signing import ProviderKey
from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import FakeProvider, offered_model
from tests.provider.local_gateway.conftest import chat, openai_client, refused

LONG = "mlx-community/Qwen3-8B-4bit"


@pytest.mark.asyncio
async def test_models_are_what_can_be_served_now(gateway: LocalGateway) -> None:
    async with openai_client(gateway) as client:
        assert (await client.models.list()).data == []
        models = [
            offered_model(LONG, context_length=40960),
            offered_model("on-demand", state=ModelState.UNLOADED),
            offered_model("loading", state=ModelState.LOADING),
            offered_model("broken", state=ModelState.FAILED),
        ]
        async with FakeProvider(gateway.link_url, models=models) as provider:
            listed = (await client.models.list()).data
            assert [model.id for model in listed] == [LONG, "on-demand"]
            one = await client.models.retrieve(LONG)
            assert (one.id, one.object, one.owned_by) == (LONG, "model", "malibu")
            assert one.created > 1_700_000_000
            assert one.model_extra == {"max_model_len": 40960}
            await provider.acks.get()
            await provider.heartbeat(ProviderState.PAUSED)
            await provider.acks.get()
            assert (await client.models.list()).data == []
            await provider.heartbeat(ProviderState.BUSY)
            await provider.acks.get()
            assert len((await client.models.list()).data) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("written", [LONG, LONG.replace("/", "%2F"), LONG.replace("/", "%2f")])
async def test_one_model_by_either_spelling(
    gateway: LocalGateway, http: aiohttp.ClientSession, prefix: str, written: str
) -> None:
    async with FakeProvider(gateway.link_url, models=[offered_model(LONG)]):
        async with http.get(URL(f"{gateway.url}{prefix}/models/{written}", encoded=True)) as response:
            assert response.status == 200
            assert (await response.json())["id"] == LONG
        async with http.get(f"{gateway.url}{prefix}/models") as response:
            assert (await response.json())["object"] == "list"
        async with http.get(f"{gateway.url}{prefix}/models/other/model") as response:
            got = await refused(response)
    assert (got.status, got.error["code"], got.error["param"]) == (404, "model_not_found", "model")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_url"),
        ("POST", "/v1/responses", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/provider", 400, "invalid_request"),
    ],
)
async def test_wrong_paths_and_methods(
    gateway: LocalGateway, http: aiohttp.ClientSession, method: str, path: str, status: int, code: str
) -> None:
    async with http.request(method, gateway.url + path) as response:
        got = await refused(response)
    assert (got.status, got.error["code"], got.error["type"]) == (status, code, "invalid_request_error")


@pytest.mark.asyncio
async def test_health_and_status(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async def status() -> dict[str, object]:
        async with http.get(f"{gateway.url}/v1/status") as response:
            document: dict[str, object] = await response.json()
            return document

    async with http.get(f"{gateway.url}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    assert await status() == {"status": "idle", "models": []}
    models = [offered_model(LONG), offered_model("loading", state=ModelState.LOADING)]
    async with FakeProvider(gateway.link_url, models=models, slots=3) as provider:
        up = {
            "id": LONG,
            "ready_provider_count": 1,
            "slots_total": 3,
            "slots_free": 3,
            "max_context_tokens": 40960,
        }
        down = {
            "id": "loading",
            "ready_provider_count": 0,
            "slots_total": 0,
            "slots_free": 0,
            "max_context_tokens": 0,
        }
        assert await status() == {"status": "degraded", "models": [down, up]}
        assert provider.provider_id not in str(await status())
        async with FakeProvider(gateway.link_url, models=[offered_model("loading")]):
            assert (await status())["status"] == "up"


@pytest.mark.asyncio
@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"])
async def test_loopback_pages_may_call(
    gateway: LocalGateway, http: aiohttp.ClientSession, origin: str
) -> None:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-lang",
    }
    async with http.options(f"{gateway.url}/v1/chat/completions", headers=headers) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == origin
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-stainless-lang"
        assert response.headers["Vary"] == "Origin"
    async with (
        FakeProvider(gateway.link_url),
        http.post(
            f"{gateway.url}/v1/chat/completions", json=chat(stream=True), headers={"Origin": origin}
        ) as response,
    ):
        assert response.headers["Access-Control-Allow-Origin"] == origin
        await response.read()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Host": "evil.example@127.0.0.1"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_foreign_hosts_and_origins(
    gateway: LocalGateway, http: aiohttp.ClientSession, headers: dict[str, str], method: str
) -> None:
    async with http.request(method, f"{gateway.url}/v1/models", headers=headers) as response:
        got = await refused(response)
        assert "Access-Control-Allow-Origin" not in response.headers
    assert (got.status, got.error["code"]) == (403, "forbidden")


@pytest.mark.asyncio
async def test_a_fetch_by_node_is_no_foreign_page(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    headers = {"Sec-Fetch-Mode": "cors", "Accept-Language": "*"}
    async with http.get(f"{gateway.url}/v1/models", headers=headers) as response:
        assert response.status == 200


@pytest.mark.asyncio
async def test_status_reports_are_verified(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async def report(provider_id: str, token: str) -> int:
        url = f"{gateway.url}/v1/providers/{provider_id}/status"
        async with http.post(url, data=token.encode()) as response:
            return response.status

    async with FakeProvider(gateway.link_url) as provider:
        good = make_status(provider.key, {"provider_id": provider.provider_id, "state": "ready"})
        assert await report(provider.provider_id, good) == 204
        assert await report(provider.provider_id, make_status(ProviderKey.generate(), {})) == 403
        assert await report(provider.provider_id, "nonsense") == 403
        assert await report("prov_unknown", good) == 403
        other = make_status(provider.key, {"provider_id": "prov_other"})
        assert await report(provider.provider_id, other) == 403
        assert await report(provider.provider_id, "x" * 70_000) == 413
