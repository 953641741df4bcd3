"""What a checked request holds, the order of checks, and that checking twice is checking once."""

from __future__ import annotations

import copy
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway_protocol.canonical import canonical_bytes, canonical_request
from gateway_protocol.codec import decode_from_gateway, encode
from gateway_protocol.errors import ApiError
from gateway_protocol.messages import JobOffer
from gateway_protocol.openai_types import CheckedRequest, Contract, ResponseFormat, ToolChoice
from gateway_protocol.validation import check_request, parse_body

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def check(contract: Contract = "malibu", **changes: Any) -> CheckedRequest:
    return check_request({"model": "m", "messages": [USER], **changes}, contract=contract)


# --- accepted fields ----------------------------------------------------------------------------


def test_every_field_arrives() -> None:
    request = check(
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        max_tokens=10,
        max_completion_tokens=20,
        temperature=0,
        top_p=1,
        top_k=40,
        min_p=0.05,
        stop=["a", "b", "c", "d"],
        seed=2**63,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.1,
        logit_bias={"50256": -100, "0": 1.5},
        logprobs=True,
        top_logprobs=20,
        include_reasoning=True,
        reasoning_effort="high",
        chat_template_kwargs={"enable_thinking": True},
        parallel_tool_calls=True,
        user="u",
        metadata={"a": "b"},
        n=1,
        modalities=["text"],
        tools=[TOOL],
        tool_choice="auto",
    )
    assert (request.stream, request.include_usage) == (True, True)
    assert request.max_tokens == 20
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.0, 1.0, 40, 0.05)
    assert request.stop == ("a", "b", "c", "d")
    assert request.seed == 2**63
    assert (request.presence_penalty, request.frequency_penalty) == (-2.0, 2.0)
    assert request.repetition_penalty == 1.1
    assert request.logit_bias == {50256: -100.0, 0: 1.5}
    assert (request.logprobs, request.top_logprobs) == (True, 20)
    assert (request.include_reasoning, request.reasoning_effort) == (True, "high")
    assert request.enable_thinking is True
    assert request.parallel_tool_calls is True
    assert request.tool_choice == ToolChoice("auto")
    assert request.unknown_fields == ()
    assert not request.has_tool_history


def test_defaults_are_none_so_that_the_model_may_have_its_own() -> None:
    request = check()
    assert request.max_tokens is request.temperature is request.top_p is request.top_k is request.seed is None
    assert request.response_format is None
    assert request.stop == ()
    assert not request.stream
    assert request.enable_thinking is None
    assert request.parallel_tool_calls is None


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_off_is_not_the_default(top_k: int) -> None:
    assert check(top_k=top_k).top_k == 0


@pytest.mark.parametrize("seed", [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_seeds_stay_exact(seed: int) -> None:
    raw = json.dumps({"model": "m", "messages": [USER], "seed": seed}).encode()
    assert check_request(parse_body(raw), contract="malibu").seed == seed


def test_one_stop_string() -> None:
    assert check(stop="END").stop == ("END",)


@pytest.mark.parametrize(
    ("effort", "kwargs", "expected"),
    [
        ("none", None, False),
        ("minimal", None, False),
        ("low", None, None),
        ("none", {"enable_thinking": True}, True),
        (None, {"enable_thinking": False}, False),
        (None, {"enable_thinking": None, "other": None}, None),
        (None, {}, None),
    ],
)
def test_thinking(effort: str | None, kwargs: dict[str, Any] | None, expected: bool | None) -> None:
    assert check(reasoning_effort=effort, chat_template_kwargs=kwargs).enable_thinking is expected


def test_response_format() -> None:
    assert check(response_format={"type": "text"}).response_format is None
    assert check(response_format={"type": "json_object"}).response_format == ResponseFormat("json_object", {})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given_format = {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    expected = ResponseFormat("json_schema", schema, name="answer", strict=True)
    assert check(response_format=given_format).response_format == expected


def test_unknown_fields_are_named_bounded_and_ignored() -> None:
    request = check(store=False, service_tier="auto", prompt_cache_key=None)
    assert request.unknown_fields == ("service_tier", "store")
    many = check(**{f"x{number:03}" + "y" * 100: 1 for number in range(100)})
    assert len(many.unknown_fields) == 16
    assert all(len(name) == 64 for name in many.unknown_fields)


def test_content_may_be_an_empty_string_or_no_parts_at_all() -> None:
    request = check(messages=[{"role": "system", "content": ""}, {"role": "user", "content": []}])
    assert [message["content"] for message in request.messages] == ["", ""]


def test_an_answer_cut_inside_its_reasoning_can_be_sent_back() -> None:
    request = check(messages=[USER, {"role": "assistant", "content": None, "reasoning_content": "Hm"}, USER])
    assert request.messages[1] == {"role": "assistant", "content": "", "reasoning_content": "Hm"}


def test_a_body_is_not_changed() -> None:
    body = {
        "model": "m",
        "stream": True,
        "user": None,
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "a"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": None}}}],
    }  # fmt: skip
    before = copy.deepcopy(body)
    check_request(body, contract="malibu")
    assert body == before


# --- order --------------------------------------------------------------------------------------

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("invalid_request:temperature", {"temperature": 9}),
    ("invalid_request:messages[1].role", {"shape": {"role": "robot", "content": "x"}}),
    ("messages_too_long", {"count": 300}),
    ("too_many_tool_calls", {"calls": 129}),
    ("tool_call_arguments_too_large", {"arguments": 2**20 + 1}),
    ("invalid_tool_call_id", {"calls": 1, "id": ""}),
    ("tool_call_arguments_aggregate_too_large", {"calls": 3, "arguments": 2**20}),
    ("tool_result_too_large", {"result": 2**18 + 1}),
    ("invalid_tools:tools[0].type", {"tools": [{}]}),
    ("unsupported_tool_choice:tool_choice", {"tool_choice": "none"}),
]


def broken_body(parts: dict[str, Any]) -> dict[str, Any]:
    """One body with all the given faults at once."""
    ids = [parts.get("id", f"call_{number:032x}") for number in range(parts.get("calls", 1))]
    arguments = "x" * parts.get("arguments", 2)
    calls = [{"id": one, "function": {"name": "f", "arguments": arguments}} for one in ids]
    messages = [
        USER,
        parts.get("shape", USER),
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": ids[0], "content": "x" * parts.get("result", 1)},
        *[USER] * parts.get("count", 0),
    ]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    return body | {name: parts[name] for name in ("temperature", "tools", "tool_choice") if name in parts}


@pytest.mark.parametrize("first", range(len(BROKEN)))
def test_the_first_failure_in_the_contracts_order_wins(first: int) -> None:
    faults: dict[str, Any] = {}
    for _, parts in reversed(BROKEN[first:]):
        faults |= parts
    with pytest.raises(ApiError) as caught:
        check_request(broken_body(faults), contract="malibu")
    param = caught.value.param
    assert BROKEN[first][0] == caught.value.code + (f":{param}" if param else "")


# --- checking twice -----------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
contents = texts | st.lists(texts.map(lambda text: {"type": "text", "text": text}), max_size=3)
ids = texts.filter(bool)


def optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Each member there, `null`, or absent."""
    return st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in members.items()})


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Valid requests: history with foreign IDs, parts, nulls, unknown fields, every kind of field."""
    extras = optional(name=texts, reasoning_content=texts, x_extra=values)
    messages: list[dict[str, Any]] = []
    for call_ids in draw(st.lists(st.lists(ids, max_size=3), max_size=3)):
        messages.append(
            draw(extras)
            | {"role": draw(st.sampled_from(["system", "developer", "user"])), "content": draw(contents)}
        )
        fresh = [f"{len(messages)}-{position}-{one}" for position, one in enumerate(call_ids)]
        if fresh:
            calls = [
                {
                    "id": one,
                    "type": "function",
                    "function": {"name": "f", "arguments": draw(texts | st.just("{}"))},
                }
                for one in fresh
            ]
            content = draw(optional(content=contents))
            messages.append(draw(extras) | content | {"role": "assistant", "tool_calls": calls})
            messages += [
                {"role": "tool", "tool_call_id": one, "content": draw(contents)} for one in fresh[1:]
            ]
    messages.append(draw(extras) | {"role": "user", "content": draw(contents)})
    fields = draw(
        optional(
            max_tokens=st.integers(1, 2**60),
            temperature=st.floats(0, 2) | st.integers(0, 2),
            top_k=st.integers(-1, 100),
            stop=ids | st.lists(ids, min_size=1, max_size=4),
            seed=st.integers(-(2**63), 2**64 - 1),
            logit_bias=st.dictionaries(st.integers(0, 10**6).map(str), st.floats(-100, 100), max_size=3),
            stream=st.booleans(),
            user=texts,
            metadata=st.dictionaries(texts, texts, max_size=2),
            parallel_tool_calls=st.booleans(),
            tool_choice=st.sampled_from(["auto", "required"]),
            x_unknown=values,
        )
    )
    if fields.get("stream"):
        fields |= draw(optional(stream_options=optional(include_usage=st.booleans(), x_other=values)))
    parameters = draw(optional(parameters=st.dictionaries(texts, values, max_size=3), strict=st.booleans()))
    tools = [{"type": "function", "function": {"name": "f", **parameters}}]
    return fields | {"model": draw(ids), "messages": messages, "tools": tools}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies())
def test_a_provider_makes_the_same_request_of_the_offer(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    request = check_request(parse_body(raw), contract="malibu")
    offered = request.offer_request()
    frame = encode(JobOffer(job_id="j", attempt=1, request=offered, deadline_ms=1))
    offer = decode_from_gateway(frame)
    assert isinstance(offer, JobOffer)
    again = check_request(offer.request, contract="malibu")
    assert again == request
    assert again.offer_request() == offered
    assert canonical_bytes(canonical_request(offer.request)) == canonical_bytes(canonical_request(body))
    assert "user" not in offered
    assert "metadata" not in offered


# --- strangers' JSON ----------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
NAMES = [
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options",
    "max_tokens", "temperature", "top_k", "stop", "seed", "logit_bias", "logprobs", "top_logprobs",
    "response_format", "reasoning_effort", "chat_template_kwargs", "n", "modalities", "functions",
    "role", "content", "type", "text", "tool_calls", "tool_call_id", "id", "function", "name",
    "arguments", "parameters", "strict", "json_schema", "schema", "include_usage", "enable_thinking",
]  # fmt: skip
WORDS = [
    "auto",
    "none",
    "function",
    "text",
    "user",
    "assistant",
    "tool",
    "json_schema",
    "f",
    "{}",
    "",
    "call_1",
]
NEAR = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)


def only_api_errors(body: dict[str, Any], contract: Contract) -> None:
    """Anything else than an `ApiError` fails the test by itself."""
    with suppress(ApiError):
        check_request(body, contract=contract)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5) | st.dictionaries(st.sampled_from(NAMES), NEAR))
def test_random_json_raises_nothing_but_api_errors(body: dict[str, Any]) -> None:
    only_api_errors(body, "malibu")
    only_api_errors(body, "strict")


@settings(max_examples=150, deadline=None)
@given(bodies(), st.data())
def test_a_valid_body_with_one_value_replaced_raises_nothing_but_api_errors(
    body: dict[str, Any], data: st.DataObject
) -> None:
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(NEAR)
        break
    only_api_errors(body, "malibu")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_random_bytes_are_an_object_or_an_api_error(raw: bytes) -> None:
    with suppress(ApiError):
        assert isinstance(parse_body(raw), dict)


# --- linear -------------------------------------------------------------------------------------


def many_messages(scale: int) -> bytes:
    return json.dumps({"model": "m", "messages": [USER] * (scale * 25_000)}).encode()


def many_numbers(scale: int) -> bytes:
    return (
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "x": ['
        + b"1," * scale * 250_000
        + b"1]}"
    )


def many_parts(scale: int) -> bytes:
    parts = [{"type": "text", "text": "é"}] * (scale * 20_000)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()


def many_tools(scale: int) -> bytes:
    tools = [
        {
            "type": "function",
            "function": {"name": f"f{number}", "parameters": {"properties": {"a": {"type": None}}}},
        }
        for number in range(scale * 8_000)
    ]
    return json.dumps({"model": "m", "messages": [USER], "tools": tools}).encode()


def escaped_surrogates(scale: int) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "😀" * (scale * 80_000)}]}
    ).encode()


def long_numbers(scale: int) -> bytes:
    body = b'{"model": "m", "messages": [{"role": "user", "content": ""}], "x": 0.'
    return body + b"7" * (scale * 1_000_000) + b"}"


def quoted_brackets(scale: int) -> bytes:
    text = '[{"' * (scale * 150_000)
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@pytest.mark.parametrize(
    "make",
    [
        many_messages,
        many_numbers,
        many_parts,
        many_tools,
        escaped_surrogates,
        long_numbers,
        quoted_brackets,
    ],
)
def test_cost_grows_with_the_size_and_no_faster(make: Any) -> None:
    """Eight times the size, up to some 8 MiB: about 8 times the CPU time, where quadratic would be 64."""

    def cost(scale: int) -> float:
        raw = make(scale)
        assert len(raw) <= 8 * 2**20
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            check_request(parse_body(raw), contract="malibu", max_messages=0)
            best = min(best, time.process_time() - start)
        return best

    small, large = cost(1), cost(8)
    assert large / max(small, 1e-3) < 32
