"""What the provider's own parsers deliver is what a gateway lets through: no answer of an honest provider is
taken for a lie, at any cut, in any delivery, of all cases and of random output."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.answer import AnswerCollector
from gateway_protocol.answer_check import AnswerBounds, AnswerCheck
from gateway_protocol.messages import Usage
from provider.toolcalls import OutputInterpreter
from provider.toolcalls.deltas import to_delta
from provider.toolcalls.events import Event, Failed, Finished, StopGeneration
from provider.toolcalls.explain import CASE_MODELS, RawOutput
from provider.toolcalls.policy import CallPolicy
from provider.toolcalls.tokens import split_special
from tests.suites.formats.test_fuzz import random_output

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
LINES = [
    json.loads(line)
    for name in ("tool_markup.jsonl", "own.jsonl")
    for line in (CASES / name).read_text("utf-8").split("\n")
    if line
]
DELIVERIES: Any = ("whole", "incremental", "buffered")
SIZES = (None, 1)


def hold(policy: CallPolicy, read: tuple[list[Event], int]) -> None:
    """Put an answer through the check as a gateway does; raises where it breaks the contract."""
    events, tokens = read
    bounds = AnswerBounds(
        names=frozenset(policy.tools) if policy.reads_calls and not policy.refuses_calls else frozenset(),
        one_call=policy.parallel is False,
        streamed=policy.delivery != "buffered",
        include_reasoning=True,
        context_length=1 << 30,
        most_tokens=1 << 30,
    )
    check, collector = AnswerCheck(bounds), AnswerCollector()
    check.accepted(1, 0)
    for event in events:
        if isinstance(event, Failed):
            return
        if isinstance(event, Finished):
            usage = Usage(prompt_tokens=1, completion_tokens=tokens)
            check.completed(event.finish_reason, usage, collector.answer(event.finish_reason))
            return
        delta = to_delta(event)
        if delta is not None:
            check.delta(delta)
            collector.add(delta)
    raise AssertionError("an answer ends")


def read(text: str, cause: Any, size: int | None, policy: CallPolicy) -> tuple[list[Event], int]:
    """The events of an output cut into tokens, and how many tokens were read."""
    interpreter, tokens = OutputInterpreter(policy), 0
    events: list[Event] = []
    for stretch, token_id in split_special(policy.family, text):
        step = len(stretch) if token_id is not None or size is None else size
        for start in range(0, len(stretch), step):
            tokens += 1
            for event in interpreter.feed(stretch[start : start + step], token_id):
                events.append(event)
                if isinstance(event, Failed):
                    return events, tokens
                if isinstance(event, StopGeneration) and event.final:
                    return events + interpreter.finish("stop"), tokens
    return events + interpreter.finish(cause), tokens


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_every_case_passes(delivery: Any) -> None:
    for case in LINES:
        for parallel in (True, False):
            output = RawOutput(
                text=case["text"],
                model=CASE_MODELS[case["family"]],
                tools=case["tools"],
                parallel=parallel,
            )
            policy = output.policy(delivery)
            for size in SIZES:
                for cause in ("stop", "length"):
                    hold(policy, read(case["text"], cause, size, policy))


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_random_output_passes(delivery: Any) -> None:
    for seed in range(400):
        text, cause, given = random_output(random.Random(seed))
        policy = CallPolicy(**given, delivery=delivery)
        hold(policy, read(text, cause, 3, policy))
