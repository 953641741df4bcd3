"""The bytes that a receipt commits to: golden files, and two other implementations as oracles."""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_protocol.canonical import canonical_bytes, canonical_request
from gateway_protocol.validation import parse_body

HERE = Path(__file__).parent
GOLDEN = sorted((HERE / "golden" / "requests").glob("*.json"))


def canonical(raw: bytes) -> bytes:
    return canonical_bytes(canonical_request(parse_body(raw)))


def test_there_are_golden_files() -> None:
    assert [path.stem for path in GOLDEN] == ["foreign_ids", "key_order", "nulls", "numbers", "plain"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_bytes(path: Path) -> None:
    assert canonical(path.read_bytes()) == path.with_suffix(".canonical").read_bytes()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_form_of_the_form_is_the_same(path: Path) -> None:
    assert (
        canonical(path.with_suffix(".canonical").read_bytes()) == path.with_suffix(".canonical").read_bytes()
    )


def test_three_changes_and_no_other() -> None:
    body = {
        "model": "m",
        "stream": False,
        "stream_options": {"include_usage": True},
        "user": "u",
        "metadata": {},
        "temperature": None,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": None}}],
        "x_unknown": {"user": None, "stream": True},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "x": None}], "name": None},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "x", "function": {"arguments": None}}],
            },
            {"role": "tool", "tool_call_id": "x", "content": "a"},
        ],
    }
    before = copy.deepcopy(body)
    rewritten = "call_2d711642b726b04401627ca9fbac32f5"
    assert canonical_request(body) == {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": None}}],
        "x_unknown": {"user": None, "stream": True},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "x": None}]},
            {"role": "assistant", "tool_calls": [{"id": rewritten, "function": {"arguments": None}}]},
            {"role": "tool", "tool_call_id": rewritten, "content": "a"},
        ],
    }
    assert body == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "text"},
        {"messages": [1, None, [], {"tool_calls": "x"}]},
        {"messages": [{"tool_calls": [1, None, {}, {"id": 5}, {"id": None}], "tool_call_id": 5}]},
    ],
)
def test_a_body_that_was_never_valid_has_a_form_too(body: dict[str, Any]) -> None:
    assert canonical_request(canonical_request(body)) == canonical_request(body)
    canonical_bytes(canonical_request(body))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400), "\ud800", {"\ud800": 1}])
def test_what_has_no_form_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - several causes, one promise
        canonical_bytes({"a": [value]})


doubles = st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack(">d", raw)[0])
numbers = st.floats(allow_nan=False, allow_infinity=False) | doubles.filter(lambda x: abs(x) < float("inf"))
texts = st.text(st.characters(codec="utf-8"), max_size=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_the_library_writes_the_same_bytes(value: Any) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(texts | st.sampled_from(["user", "messages"]), JSON, max_size=5))
def test_doing_it_twice_is_doing_it_once(body: dict[str, Any]) -> None:
    once = canonical_request(body)
    assert canonical_request(once) == once
    raw = canonical_bytes(once)
    assert canonical_bytes(canonical_request(json.loads(raw))) == raw


def random_body(source: random.Random) -> dict[str, Any]:
    def number() -> float | int:
        kind = source.randrange(4)
        if kind == 0:
            return source.randrange(-(2**70), 2**70)
        if kind == 1:
            return source.uniform(-1, 1) * 10 ** source.randrange(-12, 25)
        if kind == 2:
            return round(source.uniform(-100, 100), source.randrange(5))
        value: float = struct.unpack(">d", source.randbytes(8))[0]
        return value if abs(value) < float("inf") else 0

    def text() -> str:
        alphabet = 'aZ0"\\/\n\t\x00\x1f\x7f\u2028éß€世\ue000\uffff😀🔑'
        return "".join(source.choice(alphabet) for _ in range(source.randrange(8)))

    def value(depth: int) -> Any:
        kind = source.randrange(6 if depth else 4)
        if kind == 4:
            return [value(depth - 1) for _ in range(source.randrange(4))]
        if kind == 5:
            return {text(): value(depth - 1) for _ in range(source.randrange(4))}
        return [None, source.random() < 0.5, number(), text()][kind]

    calls = [{"id": text(), "x": value(1)} for _ in range(source.randrange(3))]
    messages = [
        {
            "role": "assistant",
            "content": value(0),
            "tool_calls": calls,
            "tool_call_id": text(),
            text(): value(2),
        }
        for _ in range(source.randrange(1, 4))
    ]
    return {
        "model": text(),
        "messages": messages,
        "user": text(),
        "stream": None,
        text(): value(3),
        "n": value(0),
    }


@pytest.mark.slow
def test_javascript_comes_to_the_same_bytes() -> None:
    node = shutil.which("node")
    assert node, "Node is needed: RFC 8785 is defined by JavaScript's own serialisation"
    source = random.Random(8785)
    raws = [path.read_bytes().replace(b"\n", b" ") for path in GOLDEN]
    raws += [
        json.dumps(random_body(source), ensure_ascii=bool(number % 2)).encode() for number in range(2000)
    ]
    script = HERE / "canonical_oracle.mjs"
    answer = subprocess.run(
        [node, script], input=b"\n".join(raws), capture_output=True, check=True, timeout=60
    )
    theirs = answer.stdout.splitlines()
    assert len(theirs) == len(raws)
    for raw, line in zip(raws, theirs, strict=True):
        assert canonical(raw) == line
