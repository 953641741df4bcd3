"""What is asked: plain chats, chats with tools, conversations of a given length. Pure.

The fixture model knows some dialogues by heart and babbles at anything else, so it is asked what it knows;
another model is asked for a long story, with a number in it so that no cache knows the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Chat = dict[str, Any]
Count = Callable[[Sequence[Message]], Awaitable[int]]
"""How many tokens a conversation is as a prompt."""

FACTS = (
    "The lighthouse stands on a rock two miles from the shore, and its lamp is lit at dusk.",
    "Water freezes at zero degrees and boils at one hundred, if the air presses as it does at the sea.",
    "Bread is made of flour, water, salt and yeast, and it wants an hour to rise before it is baked.",
    "The tides follow the moon: twice a day the sea comes in, and twice a day it goes out again.",
)
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {field: {"type": "string", "description": meaning}},
                "required": [field],
            },
        },
    }
    for name, about, field, meaning in (
        ("read_file", "Read a file of the project.", "path", "its path"),
        ("run_command", "Run a command and return what it printed.", "command", "the command line"),
    )
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The chats for one model. `dialogues`: of the fixture model, by name; empty for any other."""

    dialogues: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Prompts:
        file = folder / "dialogues.json"
        known = json.loads(file.read_text("utf-8")) if file.is_file() else []
        return cls({one["id"]: one for one in known})

    def plain(self, streams: int, max_tokens: int, nonce: int) -> list[Chat]:
        """So many chats at once, greedy, each with a long answer."""
        if self.dialogues:
            asked = [self.dialogues["lighthouse"]["messages"]] * streams
        else:
            asked = [
                [_user(f"Write a very long story about lighthouse number {nonce * 100 + number}.")]
                for number in range(streams)
            ]
        return [{"messages": messages, "max_tokens": max_tokens, "temperature": 0} for messages in asked]

    def seeded(self, streams: int, max_tokens: int, nonce: int) -> list[Chat]:
        chats = self.plain(streams, max_tokens, nonce)
        return [{**chat, "temperature": 1, "seed": nonce + number} for number, chat in enumerate(chats)]

    def with_tools(self, streams: int, max_tokens: int, nonce: int) -> list[Chat]:
        """The model may call: the fixture model does, at length."""
        if self.dialogues:
            known = self.dialogues["write-long"]
            asked = {"messages": known["messages"], "tools": known["tools"]}
            return [{**asked, "max_tokens": max_tokens, "temperature": 0}] * streams
        return [{**chat, "tools": list(TOOLS)} for chat in self.plain(streams, max_tokens, nonce)]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


async def conversation(tokens: int, nonce: int, count: Count) -> list[Message]:
    """A conversation that is a prompt of about so many tokens, ending in a question."""
    fact = " ".join(FACTS)
    head = [{"role": "system", "content": f"You are the keeper of notebook {nonce}. Answer briefly."}]

    def of(turns: int) -> list[Message]:
        messages = list(head)
        for turn in range(turns):
            messages += [_user(f"Note {turn}: {fact}"), {"role": "assistant", "content": f"Noted, {turn}."}]
        return [*messages, _user("What do you know about lighthouses?")]

    few, some = await count(of(1)), await count(of(9))
    return of(max(1, round(1 + (tokens - few) * 8 / (some - few))))
