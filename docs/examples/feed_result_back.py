"""The loop of an agent: run what was asked for, send the results back, until there is an answer."""

import os

from checking import checked_arguments
from openai import OpenAI
from single_turn import TOOLS


def get_weather(city: str) -> str:
    return f'{{"city": "{city}", "celsius": -3}}'


FUNCTIONS = {"get_weather": get_weather}


def converse(client: OpenAI, model: str, question: str, most_steps: int = 8) -> str:
    messages: list[dict] = [{"role": "user", "content": question}]
    for _ in range(most_steps):
        completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
        choice = completion.choices[0]
        if choice.finish_reason == "length":
            raise RuntimeError("cut by max_tokens: don't act on half an answer")
        if not choice.message.tool_calls:
            return choice.message.content or ""
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            try:
                arguments = checked_arguments(call.function.name, call.function.arguments, TOOLS)
                result = FUNCTIONS[call.function.name](**arguments)
            except ValueError as error:  # tell the model, so that it can try again
                result = f"error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise RuntimeError("no answer after so many steps")


if __name__ == "__main__":
    client = OpenAI(base_url=os.environ.get("MALIBU_URL", "http://127.0.0.1:8080/v1"), api_key="none")
    print(converse(client, os.environ["MALIBU_MODEL"], "What is the weather in Oslo?"))
