"""The requests that real clients send are served as they are, by gateway and provider alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.families import Family
from gateway_protocol.openai_types import Contract
from gateway_protocol.template_input import template_tools
from gateway_protocol.validation import check_for_model, check_request, parse_body

CLIENTS = Path(__file__).parent.parent / "fixtures" / "clients"
NAMES = sorted(path.stem for path in CLIENTS.glob("*.json"))


def body_of(client: str) -> dict[str, Any]:
    return parse_body((CLIENTS / f"{client}.json").read_bytes())


def test_there_is_a_body_of_every_client() -> None:
    assert {
        "ai_sdk", "aider", "cline", "continue", "langchain", "litellm", "openai_agents", "openai_python",
        "opencode", "pi", "pydantic_ai", "qwen_code",
    } <= set(NAMES)  # fmt: skip


@pytest.mark.parametrize("contract", ["malibu", "strict"])
@pytest.mark.parametrize("client", NAMES)
def test_accepted_by_the_gateway_and_again_by_the_provider(client: str, contract: Contract) -> None:
    request = check_request(body_of(client), contract=contract)
    check_for_model(request, family=Family.QWEN, can_force=False, contract=contract)
    offered = json.loads(json.dumps(request.offer_request()))
    assert check_request(offered, contract=contract) == request


@pytest.mark.parametrize("client", NAMES)
def test_what_a_template_gets_is_uniform(client: str) -> None:
    request = check_request(body_of(client), contract="malibu")
    for message in request.messages:
        assert message["role"] in ("system", "user", "assistant", "tool")
        assert isinstance(message["content"], str)
        assert None not in message.values()
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], dict)
    for tool in template_tools(request.tools):
        assert set(tool["function"]) == {"name", "description", "parameters"}
        assert isinstance(tool["function"]["parameters"]["properties"], dict)


def test_qwen_code_parts_foreign_ids_and_tools_without_parameters() -> None:
    request = check_request(body_of("qwen_code"), contract="malibu")
    assert request.messages[1]["content"].startswith("Setup: today's date is Monday, November 30, 2026.\nThe")
    assert request.messages[3]["content"] == "def area(r):\n    return 4\n"
    foreign = request.messages[3]["tool_call_id"]
    assert foreign == request.messages[2]["tool_calls"][0]["id"]
    assert foreign.startswith("call_")
    assert len(foreign) == 37
    by_name = {tool.name: tool for tool in request.tools}
    assert by_name["list_agents"].parameters is None
    assert by_name["tool_call"].parameters is not None
    assert request.max_tokens == 32768


def test_pi_parts_store_and_completion_tokens() -> None:
    request = check_request(body_of("pi"), contract="malibu")
    assert request.messages[1]["content"] == "Make two edits in area.py"
    assert request.messages[2]["content"] == ""
    assert request.max_tokens == 8192
    assert request.unknown_fields == ("store",)
    assert not any(tool.strict for tool in request.tools)


def test_strict_is_taken_from_each_tool() -> None:
    request = check_request(body_of("pydantic_ai"), contract="malibu")
    assert [tool.strict for tool in request.tools] == [False, True]


def test_developer_is_system_and_arguments_keep_every_character() -> None:
    request = check_request(body_of("openai_python"), contract="malibu")
    assert request.messages[0] == {"role": "system", "content": "Answer in one sentence."}
    written = request.messages[2]["tool_calls"][0]["function"]["arguments"]
    assert written["text"].startswith("def area(r):\n    # π × r²\n")
    assert "&amp;" in written["text"]
    assert request.has_tool_history


def test_explicit_nulls_are_absent_fields() -> None:
    given = check_request(body_of("openai_python_explicit_nulls"), contract="malibu")
    bare = {
        name: value for name, value in body_of("openai_python_explicit_nulls").items() if value is not None
    }
    assert check_request(bare, contract="malibu") == given


def test_aider_and_the_title_request_have_no_tools() -> None:
    for client in ("aider", "opencode_title"):
        request = check_request(body_of(client), contract="malibu")
        assert request.tools == ()
        assert not request.has_tool_history
        check_for_model(request, family=Family.NONE, can_force=False, contract="strict")
