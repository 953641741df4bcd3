"""The demo model's chat template: its own format without tools, Hermes markup with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = Path(__file__).parents[3] / "configs" / "demo_chat_template.jinja"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def render(messages: list[dict[str, Any]], **extra: Any) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(messages=messages, add_generation_prompt=True, **extra)


def test_a_plain_chat_gets_the_models_own_format() -> None:
    assert render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_buyers_system_message_replaces_the_models_own() -> None:
    text = render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")


def test_tools_calls_and_results_are_shown() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich"}},
    }
    text = render(
        [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "21"},
            {"role": "tool", "tool_call_id": "call_2", "content": "22"},
            {"role": "user", "content": "Thanks"},
        ],
        tools=[TOOL],
    )
    written = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert f"<|im_start|>assistant\n{written}\n{written}<|im_end|>\n" in text
    assert (
        "<|im_start|>user\n<tool_response>\n21\n</tool_response>\n<tool_response>\n22\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
    ) in text
