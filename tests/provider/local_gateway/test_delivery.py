"""The buffer between a job and its buyer."""

from __future__ import annotations

import asyncio

import pytest

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.limits import UNREAD_JOB_BYTES
from gateway_protocol.messages import Delta, FinishReason, FunctionDelta, ToolCallDelta
from provider.local_gateway.delivery import JOIN_AT_ITEMS, TAKE_BYTES, Delivery, Item, Outcome, join

DONE = Outcome(FinishReason.STOP, None, None)


def text(piece: str) -> Item:
    return Item(Delta(content=piece), None)


def arguments(piece: str) -> Item:
    call = ToolCallDelta(index=0, function=FunctionDelta(arguments=piece))
    return Item(Delta(tool_calls=(call,)), None)


def test_join_keeps_order_and_everything_that_is_no_plain_text() -> None:
    role = Item(Delta(role="assistant", content=""), None)
    logged = Item(Delta(content="l"), {"content": []})
    thought = Item(Delta(reasoning_content="hm "), None)
    items = [role, thought, thought, text("a"), text("b"), logged, text("c"), arguments("{"), arguments("}")]
    assert join(items) == [
        role,
        Item(Delta(reasoning_content="hm hm "), None),
        text("ab"),
        logged,
        text("c"),
        arguments("{"),
        arguments("}"),
    ]


def test_joined_texts_stay_within_a_delta() -> None:
    joined = join([text("é" * 1000) for _ in range(100)])
    assert "".join(item.delta.content or "" for item in joined) == "é" * 100_000
    assert max(len((item.delta.content or "").encode()) for item in joined) <= 64 * 1024
    assert len(joined) < 10


@pytest.mark.asyncio
async def test_what_nobody_takes_is_joined() -> None:
    delivery = Delivery()
    for _ in range(20 * JOIN_AT_ITEMS):
        delivery.push(text("x"))
    items = delivery.take()
    assert len(items) <= JOIN_AT_ITEMS + 16
    assert "".join(item.delta.content or "" for item in items) == "x" * 20 * JOIN_AT_ITEMS


@pytest.mark.asyncio
async def test_waiting() -> None:
    delivery = Delivery()
    waiting = asyncio.create_task(delivery.wait_accepted())
    await asyncio.sleep(0)
    delivery.accept()
    await waiting
    assert await delivery.wait(0.001) is False
    delivery.push(text("x"))
    assert await delivery.wait(60) is True
    assert delivery.take() == [text("x")]
    waiting_more = asyncio.create_task(delivery.wait(60))
    await asyncio.sleep(0)
    delivery.end(DONE)
    assert await waiting_more is True
    assert delivery.outcome is DONE
    delivery.end(Outcome(None, None, None))  # the first end counts
    assert delivery.outcome is DONE
    delivery.close()


@pytest.mark.asyncio
async def test_a_job_that_ends_before_it_is_accepted() -> None:
    delivery = Delivery()
    error = ApiError(ErrorCode.PROVIDER_OVERLOADED, "full")
    delivery.end(Outcome(None, None, None, error))
    with pytest.raises(ApiError) as raised:
        await delivery.wait_accepted()
    assert raised.value is error


@pytest.mark.asyncio
async def test_a_buyer_who_does_not_read_makes_it_full_until_he_does() -> None:
    delivery = Delivery()
    piece = "x" * 10_000
    pushed = 0
    while not delivery.full:
        delivery.push(text(piece))
        pushed += 1
    assert pushed * len(piece) <= UNREAD_JOB_BYTES < (pushed + 1) * (len(piece) + 1_000)
    taken = ""
    while delivery.waiting:
        part = "".join(item.delta.content or "" for item in delivery.take())
        assert len(part) < TAKE_BYTES + len(piece)
        taken += part
        assert not delivery.full
    assert taken == piece * pushed
    delivery.push(text(piece))
    assert delivery.take() == [text(piece)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "item",
    [
        text("é" * 10_000),
        Item(Delta(reasoning_content="x" * 40_000), None),
        arguments("x" * 40_000),
        Item(Delta(content="x"), {"content": [{"top_logprobs": [{}] * 19}] * 20}),
    ],
    ids=["wide", "reasoning", "arguments", "logprobs"],
)
async def test_everything_that_takes_room_counts(item: Item) -> None:
    delivery = Delivery()
    for _ in range(30):
        delivery.push(item)
    assert delivery.full
    delivery.close()
    assert not delivery.full
