"""Rebuild calls from a stream, and run none from a stream that didn't end as it should."""

import os

from checking import checked_arguments
from openai import OpenAI
from single_turn import TOOLS


def stream(client: OpenAI, model: str, question: str) -> tuple[str, list[tuple[str, str, dict]]]:
    """The text and the calls as (id, name, arguments)."""
    text, calls, finish_reason = "", {}, None
    chunks = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], tools=TOOLS, stream=True
    )
    for chunk in chunks:  # raises openai.APIError on an error event
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = piece.id or call["id"]
                if piece.function:
                    call["name"] = piece.function.name or call["name"]
                    call["arguments"] += piece.function.arguments or ""
            finish_reason = choice.finish_reason or finish_reason
    if finish_reason is None:
        raise RuntimeError("the stream was cut: run none of its calls")
    if finish_reason == "length":
        raise RuntimeError("cut by max_tokens: the last call may be half a call")
    whole = [calls[index] for index in sorted(calls)]
    return text, [
        (call["id"], call["name"], checked_arguments(call["name"], call["arguments"], TOOLS))
        for call in whole
    ]


if __name__ == "__main__":
    client = OpenAI(base_url=os.environ.get("MALIBU_URL", "http://127.0.0.1:8080/v1"), api_key="none")
    print(stream(client, os.environ["MALIBU_MODEL"], "What is the weather in Oslo?"))
