"""One question, one answer: text, or calls that are checked and printed but not run."""

import os

from checking import checked_arguments
from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def ask(client: OpenAI, model: str, question: str) -> list[tuple[str, dict]] | str:
    """The calls as (name, arguments), or the text."""
    completion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], tools=TOOLS
    )
    choice = completion.choices[0]
    if choice.finish_reason == "length":
        raise RuntimeError("cut by max_tokens: don't act on half an answer")
    if not choice.message.tool_calls:
        return choice.message.content or ""
    return [
        (call.function.name, checked_arguments(call.function.name, call.function.arguments, TOOLS))
        for call in choice.message.tool_calls
    ]


if __name__ == "__main__":
    client = OpenAI(base_url=os.environ.get("MALIBU_URL", "http://127.0.0.1:8080/v1"), api_key="none")
    print(ask(client, os.environ["MALIBU_MODEL"], "What is the weather in Oslo?"))
