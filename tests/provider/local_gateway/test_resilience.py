"""Links that break, providers that fail: what the buyer sees of it, and what he doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from gateway_protocol.errors import ErrorCode
from gateway_protocol.messages import Delta
from gateway_protocol.receipts import Receipt, verify_receipt
from provider.local_gateway.server import LocalGateway
from tests.fakes.fake_provider import (
    Behaviour,
    FakeJob,
    FakeProvider,
    answering,
    rejecting,
    stuck,
)
from tests.provider.local_gateway.conftest import (
    StartGateway,
    Stream,
    chat,
    eventually,
    functions,
    refusal,
    stream,
)

TEXT = [f"piece {number} " for number in range(40)]


class Gate:
    """Lets a behaviour go on, step by step, when the test says so."""

    def __init__(self) -> None:
        self._allowed = asyncio.Semaphore(0)
        self.reached = asyncio.Semaphore(0)

    async def stop(self) -> None:
        self.reached.release()
        await self._allowed.acquire()

    def go(self) -> None:
        self._allowed.release()


@pytest.mark.asyncio
@pytest.mark.parametrize("cuts", [1, 5, 20])
async def test_a_cut_link_leaves_no_trace_in_the_stream(
    gateway: LocalGateway, http: aiohttp.ClientSession, cuts: int
) -> None:
    gate = Gate()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        for number, piece in enumerate(TEXT):
            if number % (len(TEXT) // cuts) == 1:
                await gate.stop()
            await job.text(piece)
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=answering(*TEXT)) as provider:
        uncut = await stream(http, gateway)
        provider.behave = behave
        streaming = asyncio.create_task(stream(http, gateway))
        for _ in range(cuts):
            await gate.reached.acquire()
            await provider.cut()
            gate.go()  # it generates on while there is no link
            await provider.dial()
        got = await streaming
        async with http.get(f"{gateway.url}/v1/providers/keys") as response:
            published = await response.json()
    assert got.deltas == uncut.deltas
    assert got.finish_reasons == uncut.finish_reasons
    assert got.done
    receipts = [event["malibu"]["receipt"] for event in got.events if "malibu" in event]
    assert len(receipts) == 1
    assert verify_receipt(receipts[0], published).chunks == len(TEXT) + 1
    assert len(provider.jobs) == 2


@pytest.mark.asyncio
async def test_cut_before_acceptance_and_before_content(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    gate = Gate()

    async def behave(job: FakeJob) -> None:
        await gate.stop()
        await job.accept()
        await gate.stop()
        await job.begin()
        await gate.stop()
        await job.text("here")
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        streaming = asyncio.create_task(stream(http, gateway))
        for _ in range(3):
            await gate.reached.acquire()
            await provider.cut()
            gate.go()
            await provider.dial()
        got = await streaming
    assert got.text == "here"
    assert got.done
    assert len(provider.jobs) == 1


@pytest.mark.asyncio
async def test_provider_lost_before_content_another_takes_over(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"redispatch": 0.02})
    async with FakeProvider(gateway.link_url, behave=stuck) as first:
        streaming = asyncio.create_task(stream(http, gateway))
        await first.offered()
        await first.until(lambda: first.jobs[0].accepted is not None)
        async with FakeProvider(gateway.link_url, behave=answering("saved")) as second:
            await first.cut()
            got = await streaming
            assert got.text == "saved"
            assert got.done
            assert [delta for delta in got.deltas if "role" in delta] == [
                {"role": "assistant", "content": ""}
            ]
            assert second.jobs[0].offer.attempt == 2
            # The first is back too late: its attempt isn't resumed, so it drops it.
            await first.dial()
            assert first.registered is not None
            assert first.registered.resume == ()


@pytest.mark.asyncio
async def test_role_is_sent_once_over_two_attempts(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"redispatch": 0.02})

    async def first_token_only(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=first_token_only) as first:
        streaming = asyncio.create_task(stream(http, gateway))
        await first.offered()
        await first.until(lambda: bool(first.acknowledged))
        async with FakeProvider(gateway.link_url, behave=answering("saved")):
            await first.cut()
            got = await streaming
    assert got.deltas == [{"role": "assistant", "content": ""}, {"content": "saved"}, {}]


@pytest.mark.asyncio
async def test_restarted_provider_may_have_the_job_again(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async with FakeProvider(gateway.link_url, behave=stuck) as killed:
        streaming = asyncio.create_task(stream(http, gateway))
        await killed.offered()
        await killed.cut()
        fresh = FakeProvider(
            gateway.link_url, key=killed.key, provider_id=killed.provider_id, behave=answering("again")
        )
        async with fresh:  # without the job: no need to wait any longer
            assert (await streaming).text == "again"


@pytest.mark.asyncio
async def test_provider_lost_after_content(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(timers={"resume_window": 2.0, "comment": 0.01})

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("half ")
        await job.until_cancelled()

    async with (
        FakeProvider(gateway.link_url, behave=behave) as provider,
        FakeProvider(gateway.link_url, behave=behave) as other,
    ):
        streaming = asyncio.create_task(stream(http, gateway))
        await provider.until(lambda: bool(provider.acknowledged or other.acknowledged))
        serving = provider if provider.jobs else other
        await serving.cut()
        got = await streaming
        assert got.text == "half "
        assert got.done
        assert got.comments > 1
        assert got.error is not None
        assert (got.error["code"], got.error["retryable"], got.error["inference_ran"]) == (
            "provider_disconnected",
            True,
            True,
        )
        assert len(provider.jobs) + len(other.jobs) == 1


@pytest.mark.asyncio
async def test_a_call_without_arguments_never_gets_out(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    # Clients run a call whose arguments never came as one with `{}`.
    gateway = await start_gateway(timers={"resume_window": 0.05})

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.call(0, "remove", "{", '"path": "a"}')
        await job.call(1, "remove")
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        streaming = asyncio.create_task(stream(http, gateway, tools=functions("remove")))
        await provider.until(lambda: any(ack.seq >= 4 for ack in provider.acknowledged))
        await provider.cut()
        got = await streaming
    assert {piece["index"] for delta in got.deltas for piece in delta.get("tool_calls") or ()} == {0}
    assert got.error is not None
    assert got.done


@pytest.mark.asyncio
async def test_provider_back_without_the_job_after_content(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("half ")
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=behave) as killed:
        streaming = asyncio.create_task(stream(http, gateway))
        await killed.until(lambda: bool(killed.acknowledged))
        await killed.cut()
        async with FakeProvider(gateway.link_url, key=killed.key, provider_id=killed.provider_id):
            got = await streaming
    assert got.error is not None
    assert got.error["code"] == "provider_disconnected"
    assert got.done


@pytest.mark.asyncio
async def test_rejected_goes_to_the_next_at_most_three_times(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    busy = rejecting(ErrorCode.PROVIDER_OVERLOADED, retry_after_ms=1500)
    async with (
        FakeProvider(gateway.link_url, behave=busy, slots=9) as first,
        FakeProvider(gateway.link_url, behave=busy, slots=8) as second,
    ):
        async with FakeProvider(gateway.link_url, behave=answering("third"), slots=1):
            assert (await stream(http, gateway)).text == "third"
        assert len(first.jobs) + len(second.jobs) == 2
    providers = [FakeProvider(gateway.link_url, behave=busy) for _ in range(5)]
    for provider in providers:
        await provider.dial()
    got = await refusal(http, gateway, chat())
    assert got.error["code"] == "provider_overloaded"
    assert sum(len(provider.jobs) for provider in providers) == 3
    for provider in providers:
        await provider.hang_up()


@pytest.mark.asyncio
async def test_failed_before_content_goes_to_the_next(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async def crash(job: FakeJob) -> None:
        await job.accept()
        await job.fail(message="the engine's child has exited")

    async with FakeProvider(gateway.link_url, behave=crash, slots=9) as first:
        async with FakeProvider(gateway.link_url, behave=answering("fine"), slots=1):
            assert (await stream(http, gateway)).text == "fine"
        assert len(first.jobs) == 1
        got = await stream(http, gateway)  # nobody else is there: headers are out, so it is an event
        assert got.error is not None
        assert got.error["code"] == "provider_error"
        assert got.done


@pytest.mark.asyncio
async def test_first_content_budget(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    patient = await start_gateway(timers={"first_content": 2.0})
    async with FakeProvider(patient.link_url, behave=stuck, slots=9) as slow:
        async with FakeProvider(patient.link_url, behave=answering("quick"), slots=1):
            assert (await stream(http, patient)).text == "quick"
        await slow.until(lambda: slow.jobs[0].cancelled.is_set())
        assert slow.jobs[0].offer.first_content_budget_ms == 2_000
    gateway = await start_gateway(timers={"first_content": 0.05})
    async with FakeProvider(gateway.link_url, behave=stuck):
        got = await stream(http, gateway)
        assert got.error is not None
        assert (got.error["code"], got.error["retryable"]) == ("provider_timeout", True)
        refused = await refusal(http, gateway, chat())
        assert refused.status == 504


@pytest.mark.asyncio
async def test_job_deadline(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(timers={"job_deadline": 1.0})

    async def endless(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("on and on")
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=endless) as provider:
        got = await stream(http, gateway)
        assert got.error is not None
        assert got.error["code"] == "provider_timeout"
        assert provider.jobs[0].offer.deadline_ms <= 1_000
        await provider.until(lambda: provider.jobs[0].cancelled.is_set())


@pytest.mark.asyncio
async def test_unanswered_offer(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(timers={"offer": 0.05})

    async def silent(job: FakeJob) -> None:
        await job.cancelled.wait()

    async with FakeProvider(gateway.link_url, behave=silent):
        got = await refusal(http, gateway, chat())
    assert (got.status, got.error["code"]) == (504, "provider_timeout")


async def bad_chain(job: FakeJob) -> None:
    await job.delta(Delta(content="forged"), chain="0" * 64)


async def gap(job: FakeJob) -> None:
    await job.provider.send_raw(
        f'{{"type":"job_chunk","job_id":"{job.offer.job_id}","attempt":1,"seq":7,'
        f'"delta":{{"content":"x"}},"chain":"{"0" * 64}"}}'
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("break_it", [bad_chain, gap])
async def test_a_broken_chain_is_not_passed_on(
    gateway: LocalGateway, http: aiohttp.ClientSession, break_it: Behaviour
) -> None:
    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        if late:
            await job.text("good ")
        await break_it(job)

    late = False
    async with FakeProvider(gateway.link_url, behave=behave, slots=9) as provider:
        async with FakeProvider(gateway.link_url, behave=answering("honest"), slots=1):
            assert (await stream(http, gateway)).text == "honest"
        await provider.until(lambda: bool(provider.nacks))
        assert provider.nacks[0].code in ("bad_chain", "bad_sequence")
        late = True
        got = await stream(http, gateway)
        assert got.text == "good "
        assert got.error is not None
        assert got.error["code"] == "provider_error"
        assert got.done


TAMPERED: list[Callable[[Receipt], Receipt]] = [
    lambda receipt: receipt.model_copy(update={"response_sha256": "0" * 64}),
    lambda receipt: receipt.model_copy(update={"request_sha256": "0" * 64}),
    lambda receipt: receipt.model_copy(update={"chain": "0" * 64}),
    lambda receipt: receipt.model_copy(update={"model": "another"}),
    lambda receipt: receipt.model_copy(update={"attempt": 2}),
    lambda receipt: receipt.model_copy(
        update={"usage": receipt.usage.model_copy(update={"completion_tokens": 999})}
    ),
    lambda receipt: receipt.model_copy(update={"contract": "strict"}),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("tamper", TAMPERED)
async def test_a_receipt_that_does_not_fit_is_not_passed_on(
    gateway: LocalGateway, http: aiohttp.ClientSession, tamper: Callable[[Receipt], Receipt]
) -> None:
    async def behave(job: FakeJob) -> None:
        job.tamper = tamper
        await answering("text")(job)

    async with FakeProvider(gateway.link_url, behave=behave):
        got = await stream(http, gateway)
        assert got.finish_reasons == []
        assert got.error is not None
        assert got.error["code"] == "provider_error"
        assert "malibu" not in got.events[-1]
        assert (await refusal(http, gateway, chat())).status == 502


@pytest.mark.asyncio
async def test_the_buyer_leaves(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    async def never_accepts(job: FakeJob) -> None:
        await job.until_cancelled()

    async def decoding(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("x")
        await job.until_cancelled()

    url = f"{gateway.url}/v1/chat/completions"
    async with FakeProvider(gateway.link_url, slots=1) as provider:
        for behave in (never_accepts, stuck, decoding):
            for streamed in (True, False):
                provider.behave = behave
                count = len(provider.jobs)
                asking = asyncio.create_task(http.post(url, json=chat(stream=streamed)).__aenter__())
                job = await provider.offered(count + 1)
                if behave is not never_accepts and streamed:
                    (await asking).close()  # headers are here
                asking.cancel()
                await provider.until(job.cancelled.is_set)
                assert job.cancel_reason == "buyer_left"
                await provider.until(lambda job=job: job.terminal is not None)  # type: ignore[misc]
        # In the queue: the offer is never made.
        provider.behave = never_accepts
        count = len(provider.jobs)
        first = asyncio.create_task(http.post(url, json=chat()).__aenter__())
        await provider.offered(count + 1)
        waiting = asyncio.create_task(http.post(url, json=chat()).__aenter__())
        await eventually(lambda: gateway.broker.queued == 1)
        waiting.cancel()
        await eventually(lambda: gateway.broker.queued == 0)
        first.cancel()
        provider.behave = answering("free again")
        assert (await stream(http, gateway)).text == "free again"
        assert len(provider.jobs) == count + 2


@pytest.mark.asyncio
async def test_closing_the_gateway_ends_streams_properly(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("x")
        await job.until_cancelled()

    url = f"{gateway.url}/v1/chat/completions"
    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        response = await http.post(url, json=chat(stream=True)).__aenter__()
        buffered = asyncio.create_task(refusal(http, gateway, chat()))
        await provider.offered(2)
        await gateway.aclose()
        got = Stream(await response.read())
    assert got.error is not None
    assert got.error["retryable"]
    assert got.done
    assert (await buffered).status == 503


@pytest.mark.slow
@pytest.mark.asyncio
async def test_each_loss_of_a_link_has_a_window_of_its_own(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"resume_window": 10.0})
    gate = Gate()

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("a")
        await gate.stop()
        await job.text("b")
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        streaming = asyncio.create_task(stream(http, gateway))
        await gate.reached.acquire()
        for _ in range(3):  # longer in all than one window, each time well within it
            await provider.cut()
            await asyncio.sleep(4)  # time itself is what is tested here
            await provider.dial()
        gate.go()
        assert (await streaming).text == "ab"


@pytest.mark.asyncio
async def test_a_draining_provider_gets_no_offer_whatever_its_heartbeats_say(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async with FakeProvider(gateway.link_url) as provider:
        await provider.acks.get()
        await provider.send_raw('{"type": "draining", "in_flight": 0, "deadline_ms": 1000}')
        await provider.heartbeat()  # made a moment before
        assert not (await provider.acks.get()).routable
        assert (await refusal(http, gateway, chat())).error["code"] == "no_provider_available"
        await provider.hang_up()
        await provider.dial()
        assert (await stream(http, gateway)).done


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_request_that_grows_beyond_the_link_is_refused_at_once(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    numbers = b",".join([b"1e15"] * 950_000)  # written in full they are four times as long
    body = b'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "x": [%s]}'
    async with FakeProvider(gateway.link_url, slots=1) as provider:
        got = await refusal(http, gateway, body % (provider.models[0].id.encode(), numbers))
        assert (got.status, got.error["code"]) == (413, "request_body_too_large")
        assert not provider.jobs
        assert (await stream(http, gateway)).done
