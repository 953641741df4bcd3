"""Long random runs: garbage of every family, every policy, every way to deliver it, at several cuts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.toolcalls import CallPolicy
from tests.suites.formats.answers import THINK, Answer, Piece, cut_every, read, tokens
from tests.suites.formats.test_properties import (
    HARMONY_BITS,
    QWEN_BITS,
    THINK_BITS,
    TOOLS,
    without_turn_end,
)

XML_BITS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "<parameter=b>",
        "\n",
        "\n",
    ),
    *("<parameter=zz>", "</parameter>", "</parameter>", "x", " ", "<function=", "<parameter="),
]
DELIVERIES = ("buffered", "whole", "incremental")


def random_cut(chance: random.Random, pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for text, token_id in pieces:
        position = 0
        while position < len(text):
            size = len(text) if token_id is not None else chance.choice([1, 1, 2, 3, 5, 9, 50])
            out.append((text[position : position + size], token_id))
            position += size
    return out


def random_output(chance: random.Random) -> tuple[str, str, dict[str, Any]]:
    family = chance.choice([Family.QWEN, Family.QWEN, Family.QWEN, Family.LLAMA, Family.GPT_OSS])
    bits = {
        Family.QWEN: chance.choice(
            [QWEN_BITS, [*QWEN_BITS, *THINK_BITS * 2], XML_BITS, [*XML_BITS, *THINK_BITS]]
        ),
        Family.LLAMA: QWEN_BITS,
        Family.GPT_OSS: HARMONY_BITS,
    }[family]
    text = "".join(chance.choice(bits) for _ in range(chance.randint(1, 30)))
    contract = chance.choice(["malibu", "malibu", "strict"])
    policy: dict[str, Any] = {"family": family, "tools": TOOLS, "contract": contract}
    policy["parallel"] = chance.choice([True, False])
    turned_off = contract == "strict" and chance.choice([False, False, True])
    policy["choice"] = ToolChoice("none" if turned_off else "auto")
    if family is Family.QWEN:
        policy |= {"think": THINK, "reasoning_open": chance.random() < 0.15}
    return text, chance.choice(["stop", "stop", "length"]), policy


def agree(buffered: Answer, streamed: Answer) -> None:
    if streamed.error is not None and buffered.error is None:
        assert streamed.calls
        assert not buffered.calls
        return
    assert streamed.error == buffered.error
    if streamed.error is None:
        ended = [(call.name, call.arguments) for call in streamed.calls if call.ended]
        assert ended == [(call.name, call.arguments) for call in buffered.calls]
        assert streamed.finish_reason == buffered.finish_reason
        assert streamed.calls or streamed.text == buffered.text


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_garbage_raises_nothing_loses_nothing_and_reads_the_same_at_every_cut(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10_000):
        text, finish, policy = random_output(chance)
        whole_text = tokens(policy["family"], text)
        ways = [whole_text, random_cut(chance, whole_text), cut_every(whole_text, 1)]
        by_delivery = {}
        for delivery in DELIVERIES:
            answers = [read(CallPolicy(**policy, delivery=delivery), pieces, finish) for pieces in ways]
            told = {json.dumps([one.result(), one.text, one.reasoning]) for one in answers}
            assert len(told) == 1, (text, finish, policy, told)
            by_delivery[delivery] = answers[0]
            assert {call.name for call in answers[0].calls} <= {"f"}
        buffered = by_delivery["buffered"]
        agree(buffered, by_delivery["whole"])
        agree(buffered, by_delivery["incremental"])
        thinks = policy.get("reasoning_open") or "<think" in text or "</think" in text
        if (
            buffered.error is None
            and not buffered.calls
            and not thinks
            and policy["family"] is not Family.GPT_OSS
        ):
            assert buffered.text == without_turn_end(policy["family"], text)
