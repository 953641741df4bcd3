"""What a request means for engine and interpreter: the contract's table, both contracts, forced and free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway_protocol.errors import ApiError
from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.engine.base import Admitted, ModelInfo, ThinkMarkers
from provider.jobs.plan import AnswerRules, Plan, check, plan

INFO = ModelInfo(
    "qwen3", Family.QWEN, 4096, 1024, ThinkMarkers("<think>", "</think>"), can_force=True, can_constrain=True
)
FREE = replace(INFO, can_force=False, can_constrain=False)
AUTO = ToolChoice("auto")
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g"}}
NAMED = {"type": "function", "function": {"name": "g"}}
ENFORCED = Admitted(10, 0, 100, call_enforced=True)
UNENFORCED = Admitted(10, 0, 100)


def planned(info: ModelInfo = INFO, rules: AnswerRules | None = None, **fields: Any) -> Plan:
    rules = rules or AnswerRules()
    body = {"model": info.id, "messages": [{"role": "user", "content": "hi"}], **fields}
    return plan(check(body, rules), info, rules)


def strict(**more: Any) -> AnswerRules:
    return AnswerRules(contract="strict", **more)


def refused(*args: Any, **fields: Any) -> tuple[str, str | None]:
    with pytest.raises(ApiError) as error:
        planned(*args, **fields)
    return error.value.code.value, error.value.param


def test_plain_chat_has_no_constraint() -> None:
    made = planned(temperature=0.5, seed=7, max_tokens=9, logprobs=True, top_logprobs=3, stop="x")
    generation = made.generation("j#1", "tenant")
    assert generation.constraint is None
    assert generation.tools is None
    assert (generation.sampling.temperature, generation.sampling.seed) == (0.5, 7)
    assert generation.sampling.top_logprobs == 3
    assert (generation.max_tokens, generation.tenant) == (9, "tenant")
    assert planned().generation("j#1", None).sampling.top_logprobs is None


@pytest.mark.parametrize(
    ("choice", "held"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("required", ToolChoice("required")),
        (NAMED, ToolChoice("named", "g")),
    ],
)
def test_malibu_forces_where_it_can_and_leaves_the_rest_to_the_model(choice: Any, held: ToolChoice) -> None:
    made = planned(tools=[TOOL, OTHER], tool_choice=choice)
    constraint = made.generation("j", None).constraint
    assert constraint is not None
    assert (constraint.choice, constraint.parallel, constraint.refuse_uncompilable) == (held, False, False)
    assert constraint.strict_tools == {"f"}
    assert made.call_policy(ENFORCED).choice == held
    # A grammar that could not be made in time, and a device without one: the model decides.
    assert made.call_policy(UNENFORCED).choice == AUTO
    free = planned(FREE, tools=[TOOL, OTHER], tool_choice=choice)
    assert free.generation("j", None).constraint is None
    assert free.call_policy(UNENFORCED).choice == AUTO


@pytest.mark.parametrize("name", ["auto", "none", "required"])
@pytest.mark.parametrize("rules", [AnswerRules(), AnswerRules(contract="strict")])
def test_a_function_named_like_a_mode_is_that_function(name: str, rules: AnswerRules) -> None:
    named = {"type": "function", "function": {"name": name}}
    made = planned(INFO, rules, tools=[named, TOOL], tool_choice=named)
    generation = made.generation("j", None)
    assert generation.tools is not None
    assert generation.constraint is not None
    assert generation.constraint.choice == ToolChoice("named", name)
    policy = made.call_policy(ENFORCED)
    assert policy.choice == ToolChoice("named", name)
    assert not policy.refuses_calls


def test_force_switched_off_is_the_published_contract() -> None:
    rules = AnswerRules(force=False)
    made = planned(INFO, rules, tools=[TOOL], tool_choice="required")
    assert made.generation("j", None).constraint is None
    assert made.call_policy(ENFORCED).choice == AUTO
    assert refused(INFO, strict(force=False), tools=[TOOL], tool_choice="required") == (
        "unsupported_field",
        "tool_choice",
    )


def test_strict_forces_or_refuses() -> None:
    made = planned(INFO, strict(), tools=[TOOL], tool_choice="required")
    constraint = made.generation("j", None).constraint
    assert constraint is not None
    assert (constraint.choice, constraint.parallel, constraint.refuse_uncompilable) == (
        ToolChoice("required"),
        True,
        True,
    )
    assert refused(FREE, strict(), tools=[TOOL], tool_choice="required") == (
        "unsupported_field",
        "tool_choice",
    )


def test_strict_none_withholds_the_tools_and_masks_the_opener() -> None:
    made = planned(INFO, strict(), tools=[TOOL], tool_choice="none")
    generation = made.generation("j", None)
    assert generation.tools is None
    assert generation.constraint is not None
    assert generation.constraint.choice == ToolChoice("none")
    policy = made.call_policy(ENFORCED)
    assert (policy.choice, set(policy.tools)) == (ToolChoice("none"), {"f"})
    assert refused(tools=[TOOL], tool_choice="none") == ("unsupported_tool_choice", "tool_choice")


@pytest.mark.parametrize(
    ("rules", "sent", "parallel"),
    [
        (AnswerRules(), None, False),
        (AnswerRules(), False, False),
        (AnswerRules(), True, True),
        (AnswerRules(parallel_when_omitted="all"), None, True),
        (AnswerRules(parallel_when_omitted="all"), False, False),
        (AnswerRules(contract="strict"), None, True),
        (AnswerRules(contract="strict"), False, False),
    ],
)
def test_parallel_calls(rules: AnswerRules, sent: bool | None, parallel: bool) -> None:
    made = planned(INFO, rules, tools=[TOOL], parallel_tool_calls=sent)
    constraint = made.generation("j", None).constraint
    assert constraint is not None
    assert constraint.parallel is parallel
    assert made.call_policy(ENFORCED).parallel is sent


@pytest.mark.parametrize(
    ("stream", "streaming", "admitted", "delivery"),
    [
        (False, "auto", ENFORCED, "buffered"),
        (False, "incremental", UNENFORCED, "buffered"),
        (True, "auto", ENFORCED, "incremental"),
        (True, "auto", UNENFORCED, "whole"),
        (True, "incremental", UNENFORCED, "incremental"),
        (True, "whole", ENFORCED, "whole"),
    ],
)
def test_delivery(stream: bool, streaming: Any, admitted: Admitted, delivery: str) -> None:
    made = planned(INFO, AnswerRules(streaming=streaming), stream=stream, tools=[TOOL])
    assert made.call_policy(admitted).delivery == delivery


def test_a_family_without_calls_is_given_its_tools_and_never_held() -> None:
    info = replace(INFO, family=Family.NONE)
    generation = planned(info, tools=[TOOL], tool_choice="required").generation("j", None)
    assert [tool["function"]["name"] for tool in generation.tools or ()] == ["f"]
    assert generation.constraint is None


def test_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    constraint = planned(response_format=wanted).generation("j", None).constraint
    assert constraint is not None
    assert (constraint.response_schema, list(constraint.tools)) == (schema, [])
    anything = planned(response_format={"type": "json_object"}).generation("j", None).constraint
    assert anything is not None
    assert anything.response_schema == {}
    assert refused(FREE, response_format=wanted) == ("unsupported_field", "response_format")
    assert planned(FREE, response_format={"type": "text"}).generation("j", None).constraint is None


@pytest.mark.parametrize("info", [INFO, replace(INFO, family=Family.NONE, can_force=False)])
@pytest.mark.parametrize("rules", [AnswerRules(), AnswerRules(force=False)])
def test_response_format_needs_no_forced_calls(info: ModelInfo, rules: AnswerRules) -> None:
    generation = planned(info, rules, response_format={"type": "json_object"}).generation("j", None)
    assert generation.constraint is not None
    assert generation.constraint.response_schema == {}
    beside = planned(
        info, rules, tools=[TOOL], tool_choice="required", response_format={"type": "json_object"}
    ).generation("j", None)
    assert beside.constraint is not None
    forced = rules.force and info.can_force
    assert beside.constraint.choice == (ToolChoice("required") if forced else AUTO)


def test_reasoning_effort_and_thinking() -> None:
    harmony = replace(INFO, family=Family.GPT_OSS, think=None)
    kwargs = {
        effort: planned(harmony, reasoning_effort=effort).generation("j", None).template_kwargs
        for effort in ("minimal", "low", "medium", "high")
    }
    assert [kwargs[effort]["reasoning_effort"] for effort in kwargs] == ["low", "low", "medium", "high"]
    assert planned(reasoning_effort="high").generation("j", None).template_kwargs == {}
    off = planned(reasoning_effort="none").generation("j", None).template_kwargs
    assert off == {"enable_thinking": False}
    off = planned(chat_template_kwargs={"enable_thinking": False}).generation("j", None).template_kwargs
    assert off == {"enable_thinking": False}


def test_the_policy_knows_where_reasoning_stands() -> None:
    policy = planned().call_policy(Admitted(1, 0, 10, reasoning_open=True))
    assert policy.think == ("<think>", "</think>")
    assert policy.reasoning_open


def test_what_a_tool_leaves_out_or_null_does_not_reach_the_chat_template() -> None:
    schema = {"type": "object", "required": None, "properties": {"x": {"type": "string", "default": None}}}
    tool = {
        "type": "function",
        "function": {"name": "f", "description": None, "strict": None, "parameters": schema},
    }
    (shown,) = planned(tools=[tool]).generation("j", None).tools or ()
    assert shown["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "default": None}}},
    }
