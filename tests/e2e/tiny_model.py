"""The fixture model behind the whole stack: real weights and decoding, asked through openai-python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from gateway_protocol.families import Family
from provider.engine.base import ThinkMarkers
from provider.engine.spec import ModelSpec
from tests.e2e.strict_reader import Read, read
from tests.fakes.stack import Stack

FIXTURE = Path(__file__).parents[1] / "fixtures" / "models" / "tiny-qwen3"
TINY = ModelSpec(
    "tiny-qwen3", Family.QWEN, context_length=16_384, path=FIXTURE, think=ThinkMarkers("<think>", "</think>")
)
DIALOGUES: dict[str, dict[str, Any]] = {
    dialogue["id"]: dialogue for dialogue in json.loads((FIXTURE / "dialogues.json").read_text("utf-8"))
}


def tiny_stack(folder: Path, *, slots: int = 8, **options: Any) -> Stack:
    """The stack with the MLX backend and this one model."""
    return Stack(folder, backend="mlx", models=(TINY,), slots=slots, **options)


def of_kind(*kinds: str) -> list[str]:
    return [name for name, dialogue in DIALOGUES.items() if dialogue["kind"] in kinds]


def request(name: str, **fields: Any) -> dict[str, Any]:
    """A dialogue of the fixture as arguments of `chat.completions.create`, greedy."""
    dialogue = DIALOGUES[name]
    asked: dict[str, Any] = {
        "model": TINY.id,
        "messages": history(dialogue["messages"]),
        "temperature": 0,
        **fields,
    }
    if dialogue["tools"]:
        asked.setdefault("tools", dialogue["tools"])
    if dialogue["template_kwargs"]:
        extra = {"chat_template_kwargs": dialogue["template_kwargs"]}
        asked["extra_body"] = extra | asked.get("extra_body", {})
    return asked


def history(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fixture's messages, whose calls are bare, as a client sends them: with IDs and JSON text."""
    sent: list[dict[str, Any]] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message.get("tool_calls"):
            calls = []
            for number, call in enumerate(message["tool_calls"]):
                waiting.append(f"call_{place:016x}{number:016x}")
                function = {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                }
                calls.append({"id": waiting[-1], "type": "function", "function": function})
            sent.append({"role": "assistant", "content": message.get("content") or None, "tool_calls": calls})
        elif message["role"] == "tool":
            sent.append(message | {"tool_call_id": waiting.pop(0)})
        else:
            sent.append(message)
    return sent


async def buffered(client: AsyncOpenAI, asked: dict[str, Any]) -> ChatCompletion:
    completion: ChatCompletion = await client.chat.completions.create(**asked)
    return ChatCompletion.model_validate(completion.to_dict())


async def streamed(client: AsyncOpenAI, asked: dict[str, Any], *, include_usage: bool = True) -> Read:
    fields: dict[str, Any] = {**asked, "stream": True}
    if include_usage:
        fields["stream_options"] = {"include_usage": True}
    chunks = await client.chat.completions.create(**fields)
    return read([chunk.to_dict() async for chunk in chunks], include_usage=include_usage)


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, Any]]:
    """The calls as (name, arguments)."""
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    ]


def reasoning_of(message: ChatCompletionMessage) -> str | None:
    """`reasoning_content`, which the SDK keeps beside its own fields."""
    return (message.model_extra or {}).get("reasoning_content")
