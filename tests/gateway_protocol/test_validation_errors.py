"""Each row of the error table that a request can bring about: status, code, param, retryable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway_protocol import limits
from gateway_protocol.errors import ApiError
from gateway_protocol.families import Family
from gateway_protocol.openai_types import CheckedRequest, Contract
from gateway_protocol.validation import check_for_model, check_request, parse_body

ID_A, ID_B = "call_" + "a" * 32, "call_" + "b" * 32
USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "mlx-community/Qwen3-8B-4bit", "messages": [USER], **changes}


def call(call_id: Any = ID_A, arguments: Any = "{}", name: Any = "get_weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asked(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: Any = ID_A, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def history(*messages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return body(messages=[USER, *messages], **changes)


def check(
    given: dict[str, Any], contract: Contract = "malibu", max_messages: int = limits.MESSAGES_DEFAULT
) -> CheckedRequest:
    """Through bytes and back, as a body comes."""
    return check_request(parse_body(json.dumps(given).encode()), contract=contract, max_messages=max_messages)


def refusal(given: dict[str, Any], contract: Contract = "malibu") -> tuple[int, str, str | None, bool]:
    with pytest.raises(ApiError) as caught:
        check(given, contract)
    error = caught.value.envelope("req_1")["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["inference_ran"] is False
    return caught.value.http_status, error["code"], error["param"], error["retryable"]


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


# --- body ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b"{'model': 1}",
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "temperature": -Infinity}',
        b'{"model": "m", "temperature": 1e999}',
        b'{"model": "m", "seed": 1' + b"0" * 400 + b"}",
        b'{"model": "m", "seed": 1' + b"0" * 5000 + b"}",
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud83d"}',
        b'{"model": "\\uDE00\\uD83D"}',
        b'{"\\ud800": 1}',
        b'{"model": "a\nb"}',
        b'{"model": "m"} x',
        '{"model": "m"}'.encode("utf-16"),
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 8_000_000,
    ],
)
def test_invalid_json(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(raw)
    error = caught.value
    assert (error.http_status, error.code, error.param, error.retryable) == (400, "invalid_json", None, False)
    assert len(error.message) < 200


def test_body_at_the_cap_passes_and_one_byte_over_does_not() -> None:
    room = limits.REQUEST_BODY_BYTES - len(json.dumps(body(pad="")))
    at_the_cap = json.dumps(body(pad="x" * room)).encode()
    assert len(at_the_cap) == limits.REQUEST_BODY_BYTES
    check_request(parse_body(at_the_cap), contract="malibu")
    with pytest.raises(ApiError) as caught:
        parse_body(at_the_cap + b" ")
    error = caught.value
    assert (error.http_status, error.code, error.param, error.retryable) == (
        413,
        "request_body_too_large",
        None,
        False,
    )


def test_depth_at_the_cap_passes_and_one_level_over_does_not() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    parse_body(nested(limits.REQUEST_DEPTH))
    with pytest.raises(ApiError, match="deeper than 128"):
        parse_body(nested(limits.REQUEST_DEPTH + 1))


def test_what_json_parse_takes_is_taken() -> None:
    assert parse_body(b'\xef\xbb\xbf {"a": 1, "a": 2}\n') == {"a": 2}
    assert parse_body(b'{"a": "\\ud83d\\ude00", "b": "\\\\ud800", "c": -0, "d": 1E2}') == {
        "a": "😀",
        "b": "\\ud800",
        "c": 0,
        "d": 100.0,
    }
    assert parse_body(b'{"a": 123456789012345678901234567890}')["a"] == 123456789012345678901234567890


# --- fields -------------------------------------------------------------------------------------

MODEL_CASES: list[Any] = [None, "", 1, True, ["m"], {}]
BAD: dict[str, list[Any]] = {
    "model": MODEL_CASES,
    "stream": [1, "true", []],
    "stream_options": [True, []],
    "max_tokens": [0, -1, 1.5, 10.0, "10", True],
    "max_completion_tokens": [0, -1, 1.5, "10", False],
    "temperature": [-0.1, 2.01, "1", True, []],
    "top_p": [-0.1, 1.01, "1", False],
    "min_p": [-0.1, 1.01, "1"],
    "top_k": [-2, 1.5, "40", True],
    "seed": [2**64, -(2**63) - 1, 1.5, "7", True],
    "presence_penalty": [-2.01, 2.01, "0"],
    "frequency_penalty": [-2.01, 2.01, True],
    "repetition_penalty": [0, -1, "1.1", False],
    "stop": [1, "", [""], [], ["a", ""], ["a", 1], ["a"] * 5, {}],
    "logit_bias": [[], {"x": 1}, {"-1": 1}, {"1.5": 1}, {"": 1}, {"1": 101}, {"1": "5"}, {"1": True},
                   {"1": None}],
    "logprobs": [1, "true"],
    "include_reasoning": [1, "yes"],
    "reasoning_effort": [1, "extreme", True],
    "chat_template_kwargs": ["x", [], 1],
    "user": [1, {}],
    "metadata": ["x", 1, []],
    "n": ["1", 1.0, True],
    "modalities": ["text", [1]],
    "response_format": ["json", [], 1],
    "parallel_tool_calls": [0, 1, "true", {}],
    "messages": [None, [], {}, "hi", 1],
    "tool_choice": ["any", "", 1, True, [], {}, {"type": "function"}, {"type": "function", "name": "f"},
                    {"type": "function", "function": {}}, {"type": "function", "function": {"name": 1}},
                    {"type": "function", "function": "f"}, {"type": "auto"}, {"function": {"name": "f"}},
                    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_invalid_request_names_the_field(field: str, value: Any) -> None:
    given = body(tools=[tool()])
    given[field] = value
    assert refusal(given) == (400, "invalid_request", field, False)


NESTED: list[tuple[dict[str, Any], str]] = [
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"top_logprobs": 0}, "top_logprobs"),
    ({"top_logprobs": 5, "logprobs": False}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options"),
    ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": ["text"]}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}}},
        "response_format.json_schema.strict",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {}, "description": 1},
            }
        },
        "response_format.json_schema.description",
    ),
]


@pytest.mark.parametrize(("changes", "param"), NESTED)
def test_invalid_request_names_the_path(changes: dict[str, Any], param: str) -> None:
    assert refusal(body(**changes)) == (400, "invalid_request", param, False)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"functions": []}, "functions"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template_kwargs": {"preserve_thinking": True}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("changes", "param"), UNSUPPORTED)
def test_unsupported_field_names_it(changes: dict[str, Any], param: str) -> None:
    assert refusal(body(**changes)) == (400, "unsupported_field", param, False)
    with pytest.raises(ApiError, match=f"'{param}'"):
        check(body(**changes))


# --- messages -----------------------------------------------------------------------------------

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
MESSAGES: list[tuple[list[Any], str, str]] = [
    ([USER, "hi"], "invalid_request", "messages[1]"),
    ([None], "invalid_request", "messages[0]"),
    ([{"content": "hi"}], "invalid_request", "messages[0].role"),
    ([{"role": None, "content": "hi"}], "invalid_request", "messages[0].role"),
    ([{"role": "function", "name": "f", "content": "hi"}], "invalid_request", "messages[0].role"),
    ([{"role": ["user"], "content": "hi"}], "invalid_request", "messages[0].role"),
    ([{"role": "user"}], "invalid_request", "messages[0].content"),
    ([{"role": "user", "content": None}], "invalid_request", "messages[0].content"),
    ([{"role": "system", "content": 5}], "invalid_request", "messages[0].content"),
    ([{"role": "developer", "content": {"type": "text"}}], "invalid_request", "messages[0].content"),
    ([{"role": "assistant"}], "invalid_request", "messages[0].content"),
    ([{"role": "assistant", "content": None, "tool_calls": []}], "invalid_request", "messages[0].content"),
    ([{"role": "user", "content": ["hi"]}], "invalid_request", "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "hi"}]}], "invalid_request", "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "invalid_request", "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}],
     "unsupported_field", "messages[0].content[1].type"),
    ([USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
     "unsupported_field", "messages[1].content[0].type"),
    ([USER, asked(call()), result(content=None)], "invalid_request", "messages[2].content"),
    ([USER, asked(call()), {"role": "tool", "tool_call_id": ID_A}], "invalid_request", "messages[2].content"),
    ([USER, asked(call()), result(content={"ok": 1})], "invalid_request", "messages[2].content"),
    ([USER, asked(call()), result(content=[IMAGE])], "invalid_request", "messages[2].content[0].type"),
    ([{"role": "assistant", "tool_calls": {}}], "invalid_request", "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [1]}], "invalid_request", "messages[0].tool_calls[0]"),
    ([asked({**call(), "type": "custom"})], "invalid_request", "messages[0].tool_calls[0].type"),
    ([asked({"id": ID_A, "type": "function"})], "invalid_request", "messages[0].tool_calls[0].function"),
    ([asked(call(), call(name=""))], "invalid_request", "messages[0].tool_calls[1].function.name"),
    ([asked(call(name=None))], "invalid_request", "messages[0].tool_calls[0].function.name"),
    ([asked(call(arguments={"a": 1}))], "invalid_request", "messages[0].tool_calls[0].function.arguments"),
    ([asked(call(arguments=None))], "invalid_request", "messages[0].tool_calls[0].function.arguments"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "code", "param"), MESSAGES)
def test_message_shapes(messages: list[Any], code: str, param: str) -> None:
    assert refusal(body(messages=messages)) == (400, code, param, False)


def test_message_count() -> None:
    check(body(messages=[USER] * 256))
    assert refusal(body(messages=[USER] * 257)) == (400, "messages_too_long", None, False)
    check(body(messages=[USER] * 257), max_messages=0)
    check(body(messages=[USER] * 3), max_messages=3)
    with pytest.raises(ApiError):
        check(body(messages=[USER] * 4), max_messages=3)


# --- history ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad_id", [None, "", 7, ["x"], {}])
def test_invalid_tool_call_id(bad_id: Any) -> None:
    expected = (400, "invalid_tool_call_id", None, False)
    assert refusal(history(asked(call(bad_id)))) == expected
    assert refusal(history(asked(call()), result(bad_id))) == expected


def test_a_missing_id_is_invalid() -> None:
    expected = (400, "invalid_tool_call_id", None, False)
    without = {name: value for name, value in call().items() if name != "id"}
    assert refusal(history(asked(without))) == expected
    assert refusal(history(asked(call()), {"role": "tool", "content": "ok"})) == expected


def test_the_same_empty_id_on_every_call_is_invalid_not_duplicate() -> None:
    given = history(asked(call(""), call("")), result(""), result(""))
    assert refusal(given) == (400, "invalid_tool_call_id", None, False)


def test_tool_call_id_not_found() -> None:
    expected = (400, "tool_call_id_not_found", None, False)
    assert refusal(history(result())) == expected
    assert refusal(history(asked(call(ID_A)), result(ID_B))) == expected
    assert refusal(history(result(ID_A), asked(call(ID_A)))) == expected


def test_duplicate_tool_call_id() -> None:
    expected = (400, "duplicate_tool_call_id", None, False)
    assert refusal(history(asked(call(), call()))) == expected
    assert refusal(history(asked(call()), result(), asked(call()))) == expected
    assert refusal(history(asked(call()), result(), result())) == expected
    assert refusal(history(asked(call("foreign")), result("foreign"), result("foreign"))) == expected


def test_unanswered_calls_and_results_in_any_order_pass() -> None:
    check(history(asked(call(ID_A), call(ID_B))))
    check(history(asked(call(ID_A), call(ID_B)), result(ID_B)))
    check(history(asked(call(ID_A), call(ID_B)), result(ID_B), result(ID_A)))
    check(history(asked(call(ID_A)), {"role": "user", "content": "go on"}, result(ID_A)))


def ids(count: int) -> list[str]:
    return [f"call_{number:032x}" for number in range(count)]


def test_too_many_tool_calls() -> None:
    check(history(*(asked(call(one)) for one in ids(128))))
    check(history(asked(*(call(one) for one in ids(128)))))
    expected = (400, "too_many_tool_calls", None, False)
    assert refusal(history(*(asked(call(one)) for one in ids(129)))) == expected
    assert refusal(history(asked(*(call(one) for one in ids(129))))) == expected


def padded(size: int) -> str:
    """A JSON object of `size` bytes, with characters of two, three and four bytes in it."""
    head = '{"t": "é€😀'
    return head + "x" * (size - len(head.encode()) - 2) + '"}'


def test_tool_result_size() -> None:
    cap = limits.TOOL_RESULT_BYTES
    assert len(padded(cap).encode()) == cap
    check(history(asked(call()), result(content=padded(cap))))
    expected = (413, "tool_result_too_large", None, False)
    assert refusal(history(asked(call()), result(content=padded(cap + 1)))) == expected
    parts = [{"type": "text", "text": "x" * cap}, {"type": "text", "text": "y"}]
    assert refusal(history(asked(call()), result(content=parts))) == expected
    check(history(asked(call()), result(content=parts[:1])))


def test_tool_results_aggregate_size() -> None:
    cap = limits.TOOL_RESULT_BYTES
    four = [result(one, "x" * cap) for one in ids(4)]
    calls = asked(*(call(one) for one in ids(5)))
    check(history(calls, *four))
    over = history(calls, *four, result(ids(5)[4], "y"))
    assert refusal(over) == (413, "tool_results_aggregate_too_large", None, False)


def test_tool_call_arguments_size() -> None:
    cap = limits.HISTORY_ARGUMENTS_BYTES
    check(history(asked(call(arguments=padded(cap)))))
    expected = (413, "tool_call_arguments_too_large", None, False)
    assert refusal(history(asked(call(arguments=padded(cap + 1))))) == expected


def test_tool_call_arguments_aggregate_size() -> None:
    cap = limits.HISTORY_ARGUMENTS_BYTES
    first, second, third = ids(3)
    both = [call(first, padded(cap)), call(second, padded(cap))]
    check(history(asked(*both), asked(call(third, ""))))
    over = history(asked(*both), asked(call(third, "x")))
    assert refusal(over) == (413, "tool_call_arguments_aggregate_too_large", None, False)


# --- tools --------------------------------------------------------------------------------------

TOOLS: list[tuple[Any, str]] = [
    ({}, "tools"),
    ("f", "tools"),
    ([1], "tools[0]"),
    ([None], "tools[0]"),
    ([{}], "tools[0].type"),
    ([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
    ([{"type": "function"}], "tools[0].function"),
    ([tool(), {"type": "function", "function": "f"}], "tools[1].function"),
    ([tool(name=None)], "tools[0].function.name"),
    ([tool(name="")], "tools[0].function.name"),
    ([tool(name="a b")], "tools[0].function.name"),
    ([tool(name="a.b")], "tools[0].function.name"),
    ([tool(name="naïve")], "tools[0].function.name"),
    ([tool(name="f\n")], "tools[0].function.name"),
    ([tool(name="f" * 65)], "tools[0].function.name"),
    ([tool(), tool()], "tools[1].function.name"),
    ([tool(description=1)], "tools[0].function.description"),
    ([tool(parameters=[])], "tools[0].function.parameters"),
    ([tool(parameters="{}")], "tools[0].function.parameters"),
    ([tool(strict="true")], "tools[0].function.strict"),
    ([tool(strict=1)], "tools[0].function.strict"),
]


@pytest.mark.parametrize(("tools", "param"), TOOLS)
def test_invalid_tools(tools: Any, param: str) -> None:
    assert refusal(body(tools=tools)) == (400, "invalid_tools", param, False)


def test_tools_that_pass() -> None:
    assert check(body(tools=[])).tools == check(body(tools=None)).tools == ()
    names = ["f" * 64, "my-server__shell", "Read_2", "-"]
    request = check(body(tools=[tool(name=name, strict=None, parameters=None) for name in names]))
    assert [one.name for one in request.tools] == names
    assert all(one.parameters is None and not one.strict for one in request.tools)
    assert check(body(tools=[tool(strict=True, parameters={})])).tools[0].strict


# --- tool_choice --------------------------------------------------------------------------------

NAMED = {"type": "function", "function": {"name": "get_weather"}}


def test_tool_choice_none_is_unsupported_under_malibu_only() -> None:
    expected = (400, "unsupported_tool_choice", "tool_choice", False)
    assert refusal(body(tool_choice="none", tools=[WEATHER])) == expected
    assert refusal(body(tool_choice="none")) == expected
    assert check(body(tool_choice="none", tools=[WEATHER]), "strict").tool_choice.kind == "none"
    assert check(body(tool_choice="none"), "strict").tool_choice.kind == "none"


@pytest.mark.parametrize("contract", ["malibu", "strict"])
def test_forcing_needs_a_declared_function(contract: Contract) -> None:
    expected = (400, "invalid_request", "tool_choice", False)
    other = {"type": "function", "function": {"name": "other"}}
    for tools in ({}, {"tools": None}, {"tools": []}):
        assert refusal(body(tool_choice="required", **tools), contract) == expected
        assert refusal(body(tool_choice=NAMED, **tools), contract) == expected
    assert refusal(body(tool_choice=other, tools=[WEATHER]), contract) == expected


@pytest.mark.parametrize("contract", ["malibu", "strict"])
def test_tool_choices_that_pass(contract: Contract) -> None:
    for choice in (None, "auto"):
        for tools in (None, [], [WEATHER]):
            assert check(body(tool_choice=choice, tools=tools), contract).tool_choice.kind == "auto"
    assert check(body(tool_choice="required", tools=[WEATHER]), contract).tool_choice.forced
    named = check(body(tool_choice=NAMED, tools=[WEATHER]), contract).tool_choice
    assert (named.kind, named.name) == ("named", "get_weather")


# --- model and family ---------------------------------------------------------------------------


def model_refusal(given: dict[str, Any], **how: Any) -> tuple[int, str, str | None, bool, str]:
    contract = how.get("contract", "malibu")
    request = check(given, contract)
    how = {"family": Family.QWEN, "can_force": True, "contract": contract} | how
    with pytest.raises(ApiError) as caught:
        check_for_model(request, **how)
    error = caught.value
    return error.http_status, error.code, error.param, error.retryable, error.message


def allow(given: dict[str, Any], **how: Any) -> None:
    contract = how.get("contract", "malibu")
    check_for_model(
        check(given, contract), **({"family": Family.QWEN, "can_force": True, "contract": contract} | how)
    )


WITH_RESULT = history(asked(call()), result())


@pytest.mark.parametrize("family", list(Family))
def test_tool_history_by_family(family: Family) -> None:
    for given in (WITH_RESULT, history(asked(call()))):
        if family in (Family.QWEN, Family.LLAMA):
            allow(given, family=family)
        else:
            assert model_refusal(given, family=family)[:4] == (
                400,
                "unsupported_modelID_for_multi_turn",
                None,
                False,
            )
    allow(body(tools=[WEATHER]), family=family)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_cannot_be_forced(choice: Any) -> None:
    given = {**WITH_RESULT, "tools": [WEATHER], "tool_choice": choice}
    for how in ({"can_force": False}, {"force_enabled": False}):
        status, code, param, retryable, message = model_refusal(given, contract="strict", **how)
        assert (status, code, param, retryable) == (400, "unsupported_field", "tool_choice", False)
        assert "'tool_choice'" in message
        assert "this device" in message
        allow(given, contract="malibu", **how)
    allow(given, contract="strict")


def test_family_none_can_never_be_forced() -> None:
    given = body(tools=[WEATHER], tool_choice="required")
    refused = model_refusal(given, contract="strict", family=Family.NONE)
    assert refused[:3] == (400, "unsupported_field", "tool_choice")
    allow(given, contract="malibu", family=Family.NONE)


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}},
    ],
)
def test_response_format_where_it_cannot_be_held(format_: dict[str, Any]) -> None:
    given = body(response_format=format_)
    refused = model_refusal(given)
    assert refused[:4] == (400, "unsupported_field", "response_format", False)
    assert "this device" in refused[4]
    allow(given, can_constrain=True)
    allow(body(response_format={"type": "text"}))


def test_logprobs_where_there_are_none() -> None:
    given = body(logprobs=True)
    assert model_refusal(given, can_logprobs=False)[:4] == (400, "unsupported_field", "logprobs", False)
    allow(given)
    allow(body(logprobs=False), can_logprobs=False)
