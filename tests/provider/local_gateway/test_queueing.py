"""Where a job goes: free slots, the fair queue, forced calls, several providers, slow readers."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest

from gateway_protocol.messages import ModelState, ProviderState
from provider.local_gateway.server import LocalGateway
from provider.local_gateway.settings import Caps
from tests.fakes.fake_provider import FakeJob, FakeProvider, offered_model, stuck
from tests.provider.local_gateway.conftest import StartGateway, Stream, chat, eventually, refusal, stream

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


@pytest.mark.asyncio
async def test_no_ready_provider_is_said_at_once(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    loading = offered_model("loading", state=ModelState.LOADING)
    async with FakeProvider(gateway.link_url, models=[loading]) as provider:
        got = await refusal(http, gateway, chat(model="loading"))
        assert (got.status, got.error["code"]) == (503, "no_provider_available")
        assert int(got.headers["Retry-After"]) >= 1
        await provider.cut()
        # It may be back any moment, so its model isn't unknown.
        got = await refusal(http, gateway, chat(model="loading"))
        assert got.error["code"] == "no_provider_available"


@pytest.mark.asyncio
async def test_a_provider_that_is_gone_for_good_takes_its_models_along(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(timers={"resume_window": 0.02})
    async with FakeProvider(gateway.link_url) as provider:
        await provider.cut()
        await eventually(lambda: not gateway.directory.records)
        assert (await refusal(http, gateway, chat())).error["code"] == "model_not_found"


@pytest.mark.asyncio
async def test_queue_takes_turns_between_keys(gateway: LocalGateway, http: aiohttp.ClientSession) -> None:
    go = asyncio.Semaphore(0)
    served: list[str] = []

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await go.acquire()
        served.append(job.request["messages"][0]["content"])
        await answering_after_accept(job)

    async def answering_after_accept(job: FakeJob) -> None:
        await job.begin()
        await job.text("ok")
        await job.complete()

    async def ask(key: str, name: str) -> None:
        body = chat(messages=[{"role": "user", "content": name}], stream=True)
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{gateway.url}/v1/chat/completions"
        async with http.post(url, json=body, headers=headers) as response:
            assert Stream(await response.read()).done

    async with FakeProvider(gateway.link_url, behave=behave, slots=1) as provider:
        asking = [asyncio.create_task(ask("greedy", "g0"))]
        await provider.offered()
        for count, (key, name) in enumerate(
            [("greedy", "g1"), ("greedy", "g2"), ("greedy", "g3"), ("modest", "m1"), ("third", "t1")], 1
        ):
            asking.append(asyncio.create_task(ask(key, name)))
            await eventually(lambda count=count: gateway.broker.queued == count)  # type: ignore[misc]
        for _ in asking:
            go.release()
        await asyncio.gather(*asking)
    assert served == ["g0", "g1", "m1", "t1", "g2", "g3"]


@pytest.mark.asyncio
async def test_queue_is_bounded_in_length_and_time(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(queue_seconds=2.0, queue_length=1)
    async with FakeProvider(gateway.link_url, behave=stuck, slots=1) as provider:
        first = asyncio.create_task(stream(http, gateway))
        await provider.offered()
        waiting = asyncio.create_task(refusal(http, gateway, chat()))
        await eventually(lambda: gateway.broker.queued == 1)
        full = await refusal(http, gateway, chat())
        assert (full.status, full.error["code"]) == (503, "provider_overloaded")
        late = await waiting
        assert (late.status, late.error["code"]) == (503, "provider_overloaded")
        assert late.headers["Retry-After"]
        assert len(provider.jobs) == 1
        first.cancel()


@pytest.mark.asyncio
async def test_gateway_takes_a_bounded_number_of_jobs(
    start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(caps=Caps(jobs=1))
    async with FakeProvider(gateway.link_url, behave=stuck) as provider:
        first = asyncio.create_task(stream(http, gateway))
        await provider.offered()
        assert (await refusal(http, gateway, chat())).error["code"] == "provider_overloaded"
        first.cancel()


@pytest.mark.asyncio
async def test_jobs_spread_by_free_slots_and_drained_providers_get_none(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async with (
        FakeProvider(gateway.link_url, behave=stuck, slots=4) as large,
        FakeProvider(gateway.link_url, behave=stuck, slots=2) as small,
        FakeProvider(gateway.link_url, behave=stuck, slots=9) as draining,
    ):
        await draining.acks.get()
        await draining.heartbeat(ProviderState.DRAINING)
        await draining.acks.get()
        asking = []
        for count in range(1, 7):
            asking.append(asyncio.create_task(stream(http, gateway)))
            await eventually(
                lambda count=count: len(large.jobs) + len(small.jobs) == count  # type: ignore[misc]
            )
        assert (len(large.jobs), len(small.jobs), len(draining.jobs)) == (4, 2, 0)
        for task in asking:
            task.cancel()


@pytest.mark.asyncio
async def test_an_empty_slot_elsewhere_is_believed(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    async with FakeProvider(gateway.link_url, slots=2) as provider:
        provider.slots_free = 0  # taken by something that is not ours
        await provider.heartbeat()
        asking = asyncio.create_task(stream(http, gateway))
        await eventually(lambda: gateway.broker.queued == 1)
        provider.slots_free = 1
        await provider.heartbeat()
        assert (await asking).done


@pytest.mark.asyncio
async def test_forced_calls_go_to_those_that_can_force(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    can = FakeProvider(gateway.link_url, models=[offered_model(forced=True)], slots=1)
    cannot = FakeProvider(gateway.link_url, slots=8)
    async with cannot:
        # Nobody can: under `malibu` it is left to the model.
        assert (await stream(http, gateway, tools=[TOOL], tool_choice="required")).done
        async with can:
            for _ in range(3):
                assert (await stream(http, gateway, tools=[TOOL], tool_choice="required")).done
            assert len(can.jobs) == 3
            plain = [{"role": "user", "content": "something else"}]
            assert (await stream(http, gateway, tools=[TOOL], messages=plain)).done
    assert (len(cannot.jobs), len(can.jobs)) == (2, 3)


@pytest.mark.asyncio
async def test_strict_contract(start_gateway: StartGateway, http: aiohttp.ClientSession) -> None:
    gateway = await start_gateway(contract="strict")
    loaded_on_demand = offered_model(state=ModelState.UNLOADED)
    async with FakeProvider(gateway.link_url, contract="malibu"):
        assert (await refusal(http, gateway, chat())).error["code"] == "model_not_found"
    async with FakeProvider(gateway.link_url, contract="strict", models=[loaded_on_demand]) as provider:
        forced = {"tool_choice": "required", "tools": [TOOL]}
        got = await refusal(http, gateway, chat(**forced))
        assert (got.status, got.error["code"], got.error["param"]) == (
            400,
            "unsupported_field",
            "tool_choice",
        )
        assert "this device" in got.error["message"]
        assert not provider.jobs
        assert (await stream(http, gateway, tools=[TOOL], tool_choice="none")).done


@pytest.mark.asyncio
async def test_response_format_goes_to_those_that_can_hold_to_it(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    wanted = {"response_format": {"type": "json_object"}}
    async with FakeProvider(gateway.link_url, slots=9):
        got = await refusal(http, gateway, chat(**wanted))
        assert (got.status, got.error["param"]) == (400, "response_format")
        async with FakeProvider(gateway.link_url, features=("response_format",)) as able:
            assert (await stream(http, gateway, **wanted)).done
            assert len(able.jobs) == 1


@pytest.mark.asyncio
async def test_the_next_turn_goes_where_the_conversation_is_warm(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    one, other = FakeProvider(gateway.link_url, slots=3), FakeProvider(gateway.link_url, slots=3)
    async with one, other:
        history: list[dict[str, Any]] = []
        for turn in range(6):
            history += [{"role": "user", "content": f"turn {turn}"}]
            assert (await stream(http, gateway, messages=history)).done
            history += [{"role": "assistant", "content": "Hello there!"}]
    assert sorted([len(one.jobs), len(other.jobs)]) == [0, 6]


@pytest.mark.asyncio
async def test_a_job_goes_where_its_model_is_loaded_while_a_slot_is_free_there(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    unloaded = FakeProvider(
        gateway.link_url, models=[offered_model(state=ModelState.UNLOADED)], slots=8, behave=stuck
    )
    loaded = FakeProvider(gateway.link_url, slots=1, behave=stuck)
    async with unloaded, loaded, asyncio.TaskGroup() as buyers:
        asked = [buyers.create_task(stream(http, gateway))]
        await loaded.offered()
        asked.append(buyers.create_task(stream(http, gateway)))
        await unloaded.offered()
        for buyer in asked:
            buyer.cancel()
    assert (len(unloaded.jobs), len(loaded.jobs)) == (1, 1)


async def ask_and_not_read(
    gateway: LocalGateway, name: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A buyer with the smallest receive buffer there is."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    host, port = gateway.url.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=plain, limit=4096)
    body = json.dumps(chat(stream=True, messages=[{"role": "user", "content": name}])).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.asyncio
async def test_a_slow_reader_slows_nobody_and_holds_nothing_at_the_provider(
    gateway: LocalGateway, http: aiohttp.ClientSession
) -> None:
    pieces, size = 125, 40_000

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        if job.request["messages"][0]["content"] == "slow":
            for _ in range(pieces):
                await job.text("x" * size)
        else:
            await job.text("quick")
        await job.complete()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        reader, writer = await ask_and_not_read(gateway, "slow")
        job = await provider.offered()
        await provider.until(lambda: any(ack.done for ack in provider.acknowledged))
        assert job.terminal is not None  # all of it has been taken off the provider
        answers = await asyncio.gather(*(stream(http, gateway) for _ in range(7)))
        assert [answer.text for answer in answers] == ["quick"] * 7
        raw = b""
        while b"[DONE]" not in raw[-64:]:
            raw += await reader.read(65536)
        assert raw.count(b"x") >= pieces * size
        writer.close()


@pytest.mark.asyncio
async def test_who_never_reads_is_cut_off_at_last(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(timers={"job_deadline": 2.5, "delivery": 0.1}, queue_seconds=0.0)

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        for _ in range(250):
            await job.text("x" * 60_000)  # more in all than sockets buffer
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        _, writer = await ask_and_not_read(gateway, "anything")
        await provider.offered()
        await eventually(lambda: gateway.connection_count == 2)  # the provider's and this one
        await eventually(lambda: gateway.connection_count == 1)
        writer.close()
