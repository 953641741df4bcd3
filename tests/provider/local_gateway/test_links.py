"""Who may connect as a provider, and what the gateway tells those that do."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import (
    ModelState,
    NotRoutableReason,
    PreviousKey,
    ProviderState,
    RefusedCode,
)
from gateway_protocol.signing import (
    ProviderKey,
    mint_provider_id,
    sign_consent,
    sign_registration,
    thumbprint,
)
from provider.local_gateway.server import LocalGateway
from provider.local_gateway.settings import Access, Caps, Timers
from tests.fakes.fake_provider import FakeJob, FakeProvider, answering, offered_model, rejecting
from tests.fakes.waiting import send_often
from tests.provider.local_gateway.conftest import StartGateway, chat, refusal, stream

Reason = NotRoutableReason


async def test_refused(provider: FakeProvider, code: RefusedCode, close: int) -> None:
    assert provider.refused is not None
    assert provider.refused.code is code
    assert provider.refused.message
    await provider.until(lambda: provider.closed_with is not None)
    assert provider.closed_with == close


test_refused.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_registration_names_the_intervals(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(timers={"heartbeat": Timers().heartbeat})
    async with FakeProvider(gateway.link_url) as provider:
        registered = provider.registered
        assert registered is not None
        assert registered.heartbeat_interval_ms == 10_000
        assert registered.resume_window_ms == 60_000
        assert registered.resume == ()
        ack = await provider.acks.get()
        assert ack.routable
        assert ack.reasons == (Reason.MODEL_NOT_IN_DEMAND,)


@pytest.mark.asyncio
async def test_wrong_token(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(access=Access(provider_tokens=frozenset({"s3cret", "other"})))
    for token in (None, "wrong"):
        async with FakeProvider(gateway.link_url, token=token) as provider:
            await test_refused(provider, RefusedCode.TOKEN_REFUSED, 4003)
    async with FakeProvider(gateway.link_url, token="other") as provider:
        assert provider.registered


@pytest.mark.asyncio
async def test_signature_must_be_of_this_key_challenge_and_gateway(gateway: LocalGateway) -> None:
    stranger = ProviderKey.generate()
    url = "ws://" + gateway.url.removeprefix("http://")

    def sign(provider: FakeProvider, key: ProviderKey, gateway_id: str, gateway_url: str, nonce: str) -> str:
        return sign_registration(
            key,
            gateway_id=gateway_id,
            gateway_url=gateway_url,
            nonce=nonce,
            provider_id=provider.provider_id,
        )

    provider = FakeProvider(gateway.link_url)
    for wrong in (
        lambda gateway_id, nonce: sign(provider, stranger, gateway_id, url, nonce),
        lambda gateway_id, nonce: sign(provider, provider.key, gateway_id, "wss://other.example", nonce),
        lambda gateway_id, nonce: sign(provider, provider.key, "gw_other", url, nonce),
        lambda gateway_id, nonce: "no signature",
    ):
        provider.sign = wrong
        async with provider:
            await test_refused(provider, RefusedCode.BAD_SIGNATURE, 4003)


@pytest.mark.asyncio
async def test_replayed_nonce(gateway: LocalGateway) -> None:
    provider = FakeProvider(gateway.link_url)
    fresh = provider.sign
    seen: list[str] = []

    def record(gateway_id: str, nonce: str) -> str:
        seen.append(fresh(gateway_id, nonce))
        return seen[0]

    provider.sign = record
    async with provider:
        assert provider.registered
    async with provider:
        await test_refused(provider, RefusedCode.NONCE_REUSED, 4003)


@pytest.mark.asyncio
async def test_first_key_is_pinned_and_rotation_needs_consent(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    provider_id, old, new = mint_provider_id(), ProviderKey.generate(), ProviderKey.generate()
    async with FakeProvider(gateway.link_url, key=old, provider_id=provider_id) as provider:
        assert provider.registered
    async with FakeProvider(gateway.link_url, key=new, provider_id=provider_id) as provider:
        await test_refused(provider, RefusedCode.KEY_MISMATCH, 4003)
    forged = PreviousKey(
        public_key=old.public_key,
        signature=sign_consent(new, provider_id=provider_id, public_key=new.public_key),
    )
    async with FakeProvider(gateway.link_url, key=new, provider_id=provider_id, previous=forged) as provider:
        await test_refused(provider, RefusedCode.KEY_MISMATCH, 4003)
    consent = PreviousKey(
        public_key=old.public_key,
        signature=sign_consent(old, provider_id=provider_id, public_key=new.public_key),
    )
    async with FakeProvider(gateway.link_url, key=new, provider_id=provider_id, previous=consent) as provider:
        assert provider.registered
        assert (await stream(http, gateway)).done
    # The old key no longer serves, but what it signed can still be verified.
    async with FakeProvider(gateway.link_url, key=old, provider_id=provider_id) as provider:
        await test_refused(provider, RefusedCode.KEY_MISMATCH, 4003)
    async with http.get(f"{gateway.url}/v1/providers/keys") as response:
        published = [key["x"] for key in (await response.json())["keys"]]
    assert published == [old.public_key, new.public_key]


def consent_to(old: ProviderKey, new: ProviderKey, provider_id: str) -> PreviousKey:
    signature = sign_consent(old, provider_id=provider_id, public_key=new.public_key)
    return PreviousKey(public_key=old.public_key, signature=signature)


@pytest.mark.asyncio
async def test_several_rotations_between_two_meetings(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    provider_id = mint_provider_id()
    first, second, third = (ProviderKey.generate() for _ in range(3))
    newest = consent_to(second, third, provider_id)
    oldest = consent_to(first, second, provider_id)
    async with FakeProvider(gateway.link_url, key=first, provider_id=provider_id) as provider:
        assert provider.registered
    gap: dict[str, tuple[PreviousKey, ...]] = {
        "nothing before": (),
        "of another provider": (consent_to(first, second, mint_provider_id()),),
        "to another key": (consent_to(first, third, provider_id),),
    }
    for earlier in gap.values():
        async with FakeProvider(
            gateway.link_url, key=third, provider_id=provider_id, previous=newest, earlier=earlier
        ) as provider:
            await test_refused(provider, RefusedCode.KEY_MISMATCH, 4003)
    async with FakeProvider(
        gateway.link_url, key=third, provider_id=provider_id, previous=newest, earlier=(oldest,)
    ) as provider:
        assert provider.registered
        assert (await stream(http, gateway)).done
    async with http.get(f"{gateway.url}/v1/providers/keys") as response:
        published = [key["x"] for key in (await response.json())["keys"]]
    assert published == [first.public_key, second.public_key, third.public_key]


@pytest.mark.asyncio
@pytest.mark.parametrize("signer", ["before", "between", "after", "another's"])
async def test_an_ending_may_be_signed_with_any_key_since_its_offer(
    start_gateway: StartGateway, http: aiohttp.ClientSession, signer: str
) -> None:
    """The key was changed twice while the link was down; the ending was made at some time in between."""
    gateway = await start_gateway(attempts=1)
    provider_id = mint_provider_id()
    unused, first, second, third = (ProviderKey.generate() for _ in range(4))
    signers = {"before": first, "between": second, "after": third, "another's": unused}
    back = asyncio.Event()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("Hello")
        await back.wait()
        provider.key = signers[signer]
        await job.complete()

    provider = FakeProvider(gateway.link_url, key=unused, provider_id=provider_id, behave=behave)
    async with provider:
        pass  # a key of the time before the job
    provider.key = first
    provider.previous = consent_to(unused, first, provider_id)
    async with provider:
        answer = asyncio.create_task(stream(http, gateway))
        job = await provider.offered()
        await provider.until(lambda: len(job.frames) == 2)
        await provider.cut()
        provider.key = third
        provider.previous = consent_to(second, third, provider_id)
        provider.earlier = (consent_to(first, second, provider_id), consent_to(unused, first, provider_id))
        await provider.dial()
        back.set()
        got = await answer
    if signer == "another's":
        assert got.error is not None
        assert got.error["code"] == "provider_error"
    else:
        assert (got.text, got.error, got.done) == ("Hello", None, True)


@pytest.mark.asyncio
async def test_a_listed_key_lists_its_successor(start_gateway: StartGateway) -> None:
    provider_id = mint_provider_id()
    first, second, third = (ProviderKey.generate() for _ in range(3))
    consents = (consent_to(second, third, provider_id), consent_to(first, second, provider_id))
    listed = frozenset({thumbprint(first.public_key)})
    gateway = await start_gateway(access=Access(provider_keys=listed))
    async with FakeProvider(gateway.link_url, key=first, provider_id=provider_id) as provider:
        assert (await provider.acks.get()).routable
    unasked = FakeProvider(gateway.link_url, key=third, provider_id=provider_id, previous=consents[0])
    async with unasked as provider:
        await test_refused(provider, RefusedCode.KEY_NOT_ALLOWED, 4003)
    async with FakeProvider(
        gateway.link_url, key=third, provider_id=provider_id, previous=consents[0], earlier=consents[1:]
    ) as provider:
        assert provider.registered
        assert (await provider.acks.get()).routable
        gateway.switchboard.allow(listed)
        assert (await provider.acks.get()).routable
        # Off the list with the first key are those that it vouched for.
        gateway.switchboard.allow(frozenset({thumbprint(ProviderKey.generate().public_key)}))
        ack = await provider.acks.get()
        assert (ack.routable, ack.reasons[0]) == (False, Reason.KEY_NOT_ALLOWED)


@pytest.mark.asyncio
async def test_only_listed_keys(start_gateway: StartGateway) -> None:
    listed = ProviderKey.generate()
    access = Access(provider_keys=frozenset({thumbprint(listed.public_key)}))
    gateway = await start_gateway(access=access)
    async with FakeProvider(gateway.link_url) as provider:
        await test_refused(provider, RefusedCode.KEY_NOT_ALLOWED, 4003)
    async with FakeProvider(gateway.link_url, key=listed) as provider:
        assert provider.registered
        assert (await provider.acks.get()).routable
        gateway.switchboard.allow(frozenset())
        ack = await provider.acks.get()
        assert not ack.routable
        assert Reason.KEY_NOT_ALLOWED in ack.reasons


@pytest.mark.asyncio
async def test_wrong_protocol_version(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(gateway.link_url) as ws:
        assert json.loads(await ws.receive_str())["code"] == "unsupported_version"
        assert (await ws.receive()).data == 4004
    async with http.ws_connect(gateway.link_url, protocols=["malibu.provider.v1"]) as ws:
        challenge = json.loads(await ws.receive_str())
        assert challenge["protocol_versions"] == [1]
        register = {
            "type": "register",
            "protocol_version": 2,
            "provider_id": "prov_x",
            "public_key": "x",
            "signature": "x",
            "software": {"name": "x", "version": "1"},
            "machine": {},
            "models": [],
            "capacity": {"slots": 1},
            "contract": "malibu",
        }
        await ws.send_str(json.dumps(register))
        assert json.loads(await ws.receive_str())["code"] == "unsupported_version"
        assert (await ws.receive()).data == 4004


@pytest.mark.asyncio
@pytest.mark.parametrize("frame", ["{", '{"type": "register"}', "[1]", '{"no": "type"}'])
async def test_unreadable_registration(
    gateway: LocalGateway, http: aiohttp.ClientSession, frame: str
) -> None:
    async with http.ws_connect(gateway.link_url, protocols=["malibu.provider.v1"]) as ws:
        await ws.receive_str()
        await ws.send_str('{"type": "from_the_future"}')  # tolerated
        await ws.send_str(frame)
        assert json.loads(await ws.receive_str())["type"] == "nack"
        assert json.loads(await ws.receive_str())["code"] == "malformed"
        assert (await ws.receive()).data == 4001


@pytest.mark.asyncio
async def test_who_never_registers_is_cut_off(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"register": 0.5})
    async with http.ws_connect(gateway.link_url, protocols=["malibu.provider.v1"]) as ws:
        await ws.receive_str()
        assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSED


@pytest.mark.asyncio
async def test_who_makes_the_gateway_answer_and_reads_nothing_is_cut_off(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"register": 3600.0, "send": 3600.0, "link_dead": 3600.0})
    deaf = connect(gateway.link_url, subprotocols=[Subprotocol("malibu.provider.v1")], max_queue=1)
    frame = '{"type": "job_accepted", "job_id": "%s", "attempt": 1, "prompt_tokens": 1}' % ("j" * 128)
    async with deaf as socket, FakeProvider(gateway.link_url):
        with pytest.raises(ConnectionClosedError):
            await send_often(socket, frame)
        assert (await stream(http, gateway)).done


@pytest.mark.asyncio
async def test_a_provider_that_nacks_everything_fills_no_log(gateway: LocalGateway) -> None:
    with structlog.testing.capture_logs() as logs:
        async with FakeProvider(gateway.link_url) as provider:
            for code in ("malformed", "unexpected") * 50:
                await provider.send_raw(f'{{"type": "nack", "code": "{code}", "message": "no"}}')
            await reasons(provider, ProviderState.READY)
    told = [entry["code"] for entry in logs if entry["event"] == "provider_nacked"]
    assert told == ["malformed", "unexpected"]


@pytest.mark.asyncio
async def test_no_more_keys_are_pinned_than_are_kept(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(caps=Caps(pinned_keys=2))
    first = FakeProvider(gateway.link_url)
    async with first, FakeProvider(gateway.link_url), FakeProvider(gateway.link_url) as third:
        await test_refused(third, RefusedCode.TOO_MANY, 4429)
    again = FakeProvider(gateway.link_url, key=first.key, provider_id=first.provider_id)
    async with again:
        assert again.registered


@pytest.mark.asyncio
async def test_malformed_frames_end_nothing(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url) as provider:
        for frame in ("{", '{"type": "job_chunk"}', '{"type": "heartbeat", "slots_total": "x"}'):
            await provider.send_raw(frame)
        await provider.send_raw('{"type": "job_accepted", "job_id": "j", "attempt": 1, "prompt_tokens": 1}')
        await provider.until(lambda: len(provider.nacks) == 4)
        assert [nack.code for nack in provider.nacks] == [
            "not_json",
            "malformed",
            "malformed",
            "unknown_job",
        ]
        assert (await stream(http, gateway)).done


@pytest.mark.asyncio
async def test_frame_over_the_limit(gateway: LocalGateway) -> None:
    async with FakeProvider(gateway.link_url) as provider:
        await provider.send_raw('"' + "x" * 1024 * 1024 + '"')
        await provider.until(lambda: provider.closed_with is not None)
        assert provider.closed_with == 1009


@pytest.mark.asyncio
async def test_newer_session_replaces_the_older(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async with FakeProvider(gateway.link_url) as older:
        newer = FakeProvider(gateway.link_url, key=older.key, provider_id=older.provider_id)
        async with newer:
            await older.until(lambda: older.closed_with is not None)
            assert older.closed_with == 4009
            assert (await stream(http, gateway)).done
            assert len(newer.jobs) == 1


@pytest.mark.asyncio
async def test_too_many(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(caps=Caps(providers=1))
    async with FakeProvider(gateway.link_url), FakeProvider(gateway.link_url) as second:
        await test_refused(second, RefusedCode.TOO_MANY, 4429)
        assert second.refused is not None
        assert second.refused.retry_after_ms == 60_000


@pytest.mark.asyncio
async def test_half_open_link_is_noticed(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(timers={"heartbeat": 0.2, "link_dead": 1.0})
    async with FakeProvider(gateway.link_url) as provider:  # says nothing after its first heartbeat
        await provider.until(lambda: provider.closed_with is not None)
        assert provider.closed_with == 1006


async def reasons(provider: FakeProvider, state: ProviderState) -> tuple[bool, tuple[Reason, ...]]:
    """What the gateway answers to a heartbeat."""
    await provider.acks.get()  # the one on registering, or of the call before
    await provider.heartbeat(state)
    ack = await provider.acks.get()
    provider.acks.put_nowait(ack)
    return ack.routable, ack.reasons


@pytest.mark.asyncio
async def test_reasons_for_getting_no_jobs(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(minimum_version="1.2.0")
    ready = ProviderState.READY
    async with FakeProvider(gateway.link_url, version="1.1.9") as provider:
        assert await reasons(provider, ready) == (False, (Reason.BELOW_MINIMUM_VERSION,))
    async with FakeProvider(gateway.link_url, version="1.10.0", contract="strict") as provider:
        assert await reasons(provider, ready) == (False, (Reason.CONTRACT_MISMATCH,))
    loading = [offered_model(state=ModelState.LOADING)]
    async with FakeProvider(gateway.link_url, version="1.2", models=loading) as provider:
        assert await reasons(provider, ready) == (False, (Reason.MODEL_NOT_READY,))
    async with FakeProvider(gateway.link_url, version="1.2.0", slots=1) as provider:
        assert await reasons(provider, ready) == (True, (Reason.MODEL_NOT_IN_DEMAND,))
        assert await reasons(provider, ProviderState.PAUSED) == (False, (Reason.PAUSED_BY_POLICY,))
        assert await reasons(provider, ProviderState.DRAINING) == (False, (Reason.DRAINING,))
        assert await reasons(provider, ProviderState.DEGRADED) == (False, (Reason.DEGRADED,))
        await reasons(provider, ready)
        assert (await stream(http, gateway)).done
        assert await reasons(provider, ready) == (True, ())
        provider.slots_free = 0
        assert await reasons(provider, ready) == (True, (Reason.NO_FREE_SLOT,))
        provider.slots_free = 1
        assert await reasons(provider, ready) == (True, ())
        provider.behave = rejecting(ErrorCode.PROVIDER_ERROR)
        for _ in range(3):
            assert (await refusal(http, gateway, chat())).status == 502
        assert await reasons(provider, ready) == (False, (Reason.FAILED_RECENT_JOBS,))
        assert (await refusal(http, gateway, chat())).error["code"] == "no_provider_available"


@pytest.mark.asyncio
async def test_stale_heartbeats(start_gateway: StartGateway) -> None:
    # Three intervals are more than the first heartbeat may take on a loaded machine.
    gateway = await start_gateway(timers={"heartbeat": 0.5})
    async with FakeProvider(gateway.link_url) as provider:
        assert (await provider.acks.get()).routable
        stale = await provider.acks.get()  # unasked: heartbeats have stopped, though the link lives
        assert (stale.routable, stale.reasons) == (False, (Reason.STALE_HEARTBEAT,))
        await provider.heartbeat()
        assert (await provider.acks.get()).routable


@pytest.mark.asyncio
async def test_closing_sends_providers_away_to_come_back(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
    async with FakeProvider(gateway.link_url, behave=answering("x")) as provider:
        closing = asyncio.create_task(gateway.aclose())
        await provider.until(lambda: provider.closed_with is not None)
        assert provider.closed_with == 1012
        await closing
