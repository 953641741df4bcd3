"""Every collected case, at every cut, buffered and streamed both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provider.toolcalls.explain import run_case
from tests.suites.formats.answers import Answer, cuts, fits, policy_of, read

FOLDER = Path(__file__).parents[2] / "fixtures" / "cases"


def _cases() -> list[Any]:
    lines = [
        json.loads(line)
        for path in sorted(FOLDER.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]
    return [pytest.param(case, id=case["id"]) for case in lines]


@pytest.mark.parametrize("case", _cases())
def test_a_case_is_read_as_expected_at_every_cut_buffered_and_streamed(case: dict[str, Any]) -> None:
    """Judgement cases too: where the case accepts several results, one of them, and the same at each cut."""
    family = policy_of(case).family
    ways = {delivery: policy_of(case, delivery) for delivery in ("buffered", "whole", "incremental")}
    results = set()
    for pieces in cuts(family, case["text"]):
        buffered = read(ways["buffered"], pieces, case["finish"])
        assert fits(case["expect"], buffered.result()), buffered.result()
        whole = read(ways["whole"], pieces, case["finish"])
        incremental = read(ways["incremental"], pieces, case["finish"])
        _agree(buffered, whole)
        _agree(buffered, incremental)
        results.add(json.dumps([answer.result() for answer in (buffered, whole, incremental)]))
    assert len(results) == 1, "the cut makes no difference"


def _agree(buffered: Answer, streamed: Answer) -> None:
    """A stream says the same, but for the two differences that the contract names: a failure after a tool
    delta is an error event, and a call that was cut leaves its deltas."""
    if streamed.error is not None and buffered.error is None:
        assert streamed.calls
        assert not buffered.calls
        assert streamed.error.startswith("malformed_tool_call")
        return
    assert streamed.error == buffered.error
    assert streamed.finish_reason == buffered.finish_reason
    if buffered.error is not None:
        return
    complete = [call for call in streamed.calls if call.ended]
    assert [(c.name, c.arguments) for c in complete] == [(c.name, c.arguments) for c in buffered.calls]
    if len(complete) < len(streamed.calls):
        assert streamed.finish_reason == "length"
    elif not streamed.calls:
        assert streamed.text == buffered.text
    assert streamed.reasoning == buffered.reasoning


@pytest.mark.parametrize("case", _cases())
@pytest.mark.parametrize("chunk_chars", [None, 3])
def test_the_explanation_of_a_case_is_what_the_interpreter_gives(
    case: dict[str, Any], chunk_chars: int | None
) -> None:
    line = run_case(case, chunk_chars)
    assert line["id"] == case["id"]
    for side in ("buffered", "streamed"):
        assert fits(case["expect"], _result(line[side])), line[side]


def _result(said: dict[str, Any]) -> dict[str, Any]:
    if "error" in said:
        return {"error": said["error"]["code"]}
    message = said["message"]
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls", ())
    ]
    return {"finish_reason": said["finish_reason"], "calls": calls, "content": message["content"]}
