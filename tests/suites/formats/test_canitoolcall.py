"""Real and rendered outputs with their expected parses, from the `canitoolcall` package.

Every difference from its expectation is in `DIFFERENCES`, with the line of docs/contract.md that asks for it.
That prose around a call is dropped (11) holds for all of them and is not listed.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway_protocol.families import Family
from provider.toolcalls import CallPolicy
from provider.toolcalls.families import HARMONY_TOKENS
from tests.suites.formats.answers import THINK, Answer, Piece, cut_every, read

FAMILIES = {
    "qwen3-hermes": Family.QWEN,
    "qwen3-xml": Family.QWEN,
    "gpt-oss": Family.GPT_OSS,
    "llama": Family.LLAMA,
}
# Llama 4 writes Python lists of calls; its models are of no family here.
OTHER_MARKUP = "Llama-4"

CUT_MARKUP_IS_SHOWN = (
    "what becomes a call, 9: with none completed, `content` is the whole visible text, cut markup included"
)
DIFFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-hermes/truncated-second-parallel-call": (
        "what becomes a call, 8: an answer with calls ends in `length` if a later call was cut",
        {},
    ),
    "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments": (
        CUT_MARKUP_IS_SHOWN,
        {},
    ),
    "qwen3-hermes/bug-sglang-30480-truncated-at-opener": (
        CUT_MARKUP_IS_SHOWN,
        {},
    ),
    "qwen3-xml/q38-truncated-at-tool-call-open": (
        CUT_MARKUP_IS_SHOWN,
        {"content": "<tool_call>"},
    ),
    "qwen3-xml/llamacpp-q35-call-inside-think": (
        "what becomes a call, 7: a call in reasoning that is never closed is decided at the end, when its "
        "text has long been streamed as reasoning",
        {
            "reasoning_content": "Need to inspect the current directory.\n<tool_call>\n"
            "<function=run_in_terminal>\n<parameter=command>\npwd\n</parameter>\n</function>\n</tool_call>"
        },
    ),
    "gpt-oss/llamacpp-builtin-python-recipient": (
        "what becomes a call, 2: an undeclared name is 502 `malformed_tool_call_final_json` on gpt_oss",
        {"error": "malformed_tool_call_final_json"},
    ),
}


def _fixtures() -> Iterator[dict[str, Any]]:
    root = importlib.resources.files("canitoolcall") / "_data" / "fixtures"
    for folder in FAMILIES:
        for path in sorted((root / folder).iterdir(), key=lambda entry: entry.name):
            if path.name.endswith(".jsonl"):
                for line in path.read_text(encoding="utf-8").split("\n"):
                    if line and OTHER_MARKUP not in json.loads(line)["models"][0]:
                        yield json.loads(line)


FIXTURES = list(_fixtures())


def pieces_of(fixture: dict[str, Any], size: int) -> list[Piece]:
    """The output in tokens: Harmony's special ones by their IDs, of which the fixture lists the order."""
    text, out = fixture["raw_output"], list[Piece]()
    position = 0
    if FAMILIES[fixture["family"]] is Family.GPT_OSS:
        for token_id in fixture["output_token_ids"]:
            if token_id in HARMONY_TOKENS:
                spelled = HARMONY_TOKENS[token_id][0]
                at = text.index(spelled, position)
                out += [(text[position:at], None), (spelled, token_id)]
                position = at + len(spelled)
    out.append((text[position:], None))
    return cut_every([piece for piece in out if piece[0]], size)


def answer_of(fixture: dict[str, Any], delivery: str, size: int) -> Answer:
    family = FAMILIES[fixture["family"]]
    policy = CallPolicy(
        family=family,
        tools={tool["function"]["name"]: tool["function"].get("parameters") for tool in fixture["tools"]},
        parallel=True,
        delivery=delivery,  # type: ignore[arg-type]
        think=THINK if family is Family.QWEN else None,
        reasoning_open=(fixture.get("generation_prompt") or "").rstrip().endswith(THINK[0]),
    )
    return read(policy, pieces_of(fixture, size), "length" if "truncated" in fixture["tags"] else "stop")


def test_the_corpus_is_there() -> None:
    assert len(FIXTURES) >= 170
    assert {fixture["id"] for fixture in FIXTURES} >= set(DIFFERENCES)


@pytest.mark.parametrize("fixture", [pytest.param(one, id=one["id"]) for one in FIXTURES])
@pytest.mark.parametrize("delivery", ["buffered", "whole", "incremental"])
def test_an_output_is_parsed_as_expected(fixture: dict[str, Any], delivery: str) -> None:
    for size in (0, 1, 5):
        answer = answer_of(fixture, delivery, size)
        _, changed = DIFFERENCES.get(fixture["id"], ("", {}))
        if "expected" in fixture:
            _equal(answer, fixture["expected"] | changed)
        else:
            # Broken or cut: no call, or (streamed as it is generated) one that the client is told is none.
            assert not [call for call in answer.calls if call.ended]
            assert not answer.calls or answer.finish_reason == "length" or answer.error


def _equal(answer: Answer, expected: dict[str, Any]) -> None:
    """As the corpus compares: text up to white space at its ends, arguments as parsed JSON."""
    assert answer.error == expected.get("error")
    if answer.error is not None:
        return
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments)} for call in answer.calls if call.ended
    ]
    assert calls == expected["tool_calls"]
    assert answer.reasoning.strip() == (expected["reasoning_content"] or "").strip()
    if not calls:
        assert answer.text.strip() == (expected["content"] or "").strip()
