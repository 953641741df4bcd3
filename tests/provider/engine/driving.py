"""Drive one generation to its end and say what came out; what the fixture model knows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    Generation,
    GenerationRequest,
    Rejected,
    SamplingParams,
    Token,
    Tokens,
)
from provider.engine.process import EngineProcess

FIXTURE = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen3"
DIALOGUES: list[dict[str, Any]] = json.loads((FIXTURE / "dialogues.json").read_text(encoding="utf-8"))
GREEDY = SamplingParams(temperature=0.0)

_counter = iter(range(1, 1 << 62))


@dataclass
class Outcome:
    admitted: Admitted | None = None
    tokens: list[Token] = field(default_factory=list)
    end: EngineEvent | None = None

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end

    @property
    def rejected(self) -> Rejected:
        assert isinstance(self.end, Rejected), self.end
        return self.end

    def take(self, events: list[EngineEvent]) -> None:
        for event in events:
            assert self.end is None, f"{event} after {self.end}"
            if isinstance(event, Tokens):
                assert event.tokens
                self.tokens.extend(event.tokens)
            elif isinstance(event, Admitted):
                assert self.admitted is None
                self.admitted = event
            else:
                self.end = event


def ask(text: str, model: str = "qwen3-test", **fields: Any) -> GenerationRequest:
    messages = fields.pop("messages", [{"role": "user", "content": text}])
    return GenerationRequest(generation_id=f"test-{next(_counter)}", model=model, messages=messages, **fields)


def known(dialogue: dict[str, Any], **fields: Any) -> GenerationRequest:
    """A request whose answer the fixture model knows by heart: `dialogue["raw"]`."""
    return ask(
        "",
        model="tiny-qwen3",
        messages=dialogue["messages"],
        tools=dialogue["tools"],
        template_kwargs=dialogue["template_kwargs"],
        **({"sampling": GREEDY} | fields),
    )


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [dialogue for dialogue in DIALOGUES if dialogue["kind"] == kind]


async def until_admitted(generation: Generation) -> Outcome:
    outcome = Outcome()
    while outcome.admitted is None and outcome.end is None:
        outcome.take(await generation.events())
    return outcome


async def until_tokens(generation: Generation, count: int) -> Outcome:
    outcome = Outcome()
    while len(outcome.tokens) < count and outcome.end is None:
        outcome.take(await generation.events())
    return outcome


async def to_end(generation: Generation, outcome: Outcome | None = None) -> Outcome:
    outcome = outcome or Outcome()
    while outcome.end is None:
        outcome.take(await generation.events())
    return outcome


async def run(engine: EngineProcess, request: GenerationRequest) -> Outcome:
    return await to_end(engine.submit(request))
