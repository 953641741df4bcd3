"""Drive one generation to its end and say what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    Generation,
    GenerationRequest,
    Rejected,
    Token,
    Tokens,
)
from provider.engine.process import EngineProcess

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
