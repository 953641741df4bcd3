"""What would the daemon make of this model output? Behind `malibu-provider parse` and `POST /v1/explain`.

A raw output goes the way that a generated one goes: the same interpreter, the same deltas, the same fold.
Only its tokens are made up: text is cut as asked for, and where a family is told by token IDs, a special
token that the text spells stands for that token. Pure: no clock, so `created` is 0, and no `usage`, since
nothing was counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway_protocol.checks.tools import check_tools
from gateway_protocol.completion import AnswerCollector, chat_completion, chunk
from gateway_protocol.errors import ApiError
from gateway_protocol.families import FAMILIES, Family, family_of
from gateway_protocol.messages import Delta, FinishReason, Usage
from gateway_protocol.openai_types import AUTO, ToolChoice
from provider.toolcalls.deltas import to_delta
from provider.toolcalls.events import Event, Failed, Finished, ReasoningDelta, StopGeneration
from provider.toolcalls.families import MARKUP, Schemas
from provider.toolcalls.interpreter import OutputInterpreter
from provider.toolcalls.opened_reasoning import opened_by_prompt
from provider.toolcalls.policy import CallPolicy, Cause, Delivery
from provider.toolcalls.tokens import split_special

_ID: Final = "chatcmpl-explain"
_REQUEST_ID: Final = "req_explain"
# The families of a line of cases, and a model of each.
CASE_MODELS: Final[Mapping[str, str]] = {
    "qwen_hermes": "mlx-community/Qwen3-8B-4bit",
    "qwen_coder": "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
    "harmony": "mlx-community/gpt-oss-20b-MXFP4-Q8",
    "llama3": "mlx-community/Llama-3.3-70B-Instruct-4bit",
}


@dataclass(frozen=True, slots=True)
class RawOutput:
    """A model's output after the prompt, special tokens spelled out, and the request that it answers.

    `tools`: as in a request. `chunk_chars`: length of the pieces it is read in, `None` for whole. `family`:
    the model ID's unless given. `think`: the reasoning markers, the family's usual ones unless given.
    `reasoning_open`: whether the prompt had opened reasoning; unless given, it had if the text closes what it
    never opened. `streaming`: how a stream delivers calls.
    """

    text: str
    model: str
    tools: Sequence[Any] = ()
    finish: Cause = "stop"
    parallel: bool | None = None
    contract: Literal["malibu", "strict"] = "malibu"
    tool_choice: ToolChoice = AUTO
    parallel_when_omitted: Literal["one", "all"] = "one"
    streaming: Literal["whole", "incremental"] = "whole"
    chunk_chars: int | None = None
    include_reasoning: bool = True
    family: Family | None = None
    think: tuple[str, str] | None = None
    reasoning_open: bool | None = None

    def policy(self, delivery: Delivery) -> CallPolicy:
        """Raises `ApiError` where the tools are none."""
        specs = check_tools({"tools": list(self.tools)})
        family = self.family or family_of(self.model)
        tools = {spec.name: spec.parameters for spec in specs}
        think = self.think or FAMILIES[family].think
        return CallPolicy(
            family=family,
            tools=tools,
            contract=self.contract,
            choice=self.tool_choice,
            parallel=self.parallel,
            parallel_when_omitted=self.parallel_when_omitted,
            strict_tools=frozenset(spec.name for spec in specs if spec.strict),
            delivery=delivery,
            think=think,
            reasoning_open=self._reasoning_open(family, tools, think),
        )

    def _reasoning_open(self, family: Family, schemas: Schemas, think: tuple[str, str] | None) -> bool:
        if self.reasoning_open is not None or think is None or family is Family.GPT_OSS:
            return bool(self.reasoning_open)
        return opened_by_prompt(self.text, MARKUP[family], schemas, think)


def explain(output: RawOutput, *, stream: bool = False) -> dict[str, Any] | list[dict[str, Any]]:
    """The completion or its error envelope; with `stream`, the chunks, or those before the error and it."""
    return explain_chunks(output) if stream else explain_completion(output)


def explain_completion(output: RawOutput) -> dict[str, Any]:
    collector, ending = _fold(output, "buffered")
    if isinstance(ending, ApiError):
        return ending.envelope(_REQUEST_ID)
    completion = chat_completion(
        id=_ID,
        created=0,
        model=output.model,
        collector=collector,
        finish_reason=ending,
        usage=Usage(prompt_tokens=0, completion_tokens=0),
    )
    del completion["usage"]
    return completion


def explain_chunks(output: RawOutput) -> list[dict[str, Any]]:
    steps = [Delta(role="assistant", content=""), *_answer(output, output.streaming)]
    return [_event(output.model, step) for step in steps]


def _event(model: str, step: Delta | FinishReason | ApiError) -> dict[str, Any]:
    if isinstance(step, ApiError):
        return step.envelope(_REQUEST_ID)
    if isinstance(step, Delta):
        return chunk(id=_ID, created=0, model=model, delta=step)
    return chunk(id=_ID, created=0, model=model, finish_reason=step)


def run_case(
    case: Mapping[str, Any],
    chunk_chars: int | None = None,
    streaming: Literal["whole", "incremental"] = "whole",
) -> dict[str, Any]:
    """One line of cases, buffered and streamed: `{"id", "buffered", "streamed"}`, each `{"finish_reason",
    "message"}` or the error's envelope, `{"error": {"code", "message", …}}`; the streamed one is put together
    from its deltas.

    Raises `KeyError` where the line lacks a field or names another family.
    """
    output = RawOutput(
        text=case["text"],
        model=CASE_MODELS[case["family"]],
        tools=case["tools"],
        finish=case.get("finish", "stop"),
        parallel=case.get("parallel"),
        streaming=streaming,
        chunk_chars=chunk_chars,
        include_reasoning=False,
    )
    return {
        "id": case["id"],
        "buffered": _outcome(output, "buffered"),
        "streamed": _outcome(output, streaming),
    }


def _outcome(output: RawOutput, delivery: Delivery) -> dict[str, Any]:
    try:
        collector, ending = _fold(output, delivery)
    except ApiError as refusal:
        return refusal.envelope(_REQUEST_ID)
    if isinstance(ending, ApiError):
        return ending.envelope(_REQUEST_ID)
    return {"finish_reason": ending.value, "message": collector.message()}


def _fold(output: RawOutput, delivery: Delivery) -> tuple[AnswerCollector, FinishReason | ApiError]:
    collector = AnswerCollector()
    for step in _answer(output, delivery):
        if not isinstance(step, Delta):
            return collector, step
        collector.add(step)
    raise AssertionError("an answer ends in a finish reason or an error")


def _answer(output: RawOutput, delivery: Delivery) -> Iterator[Delta | FinishReason | ApiError]:
    """The deltas, then how it ended."""
    for event in _events(output, delivery):
        if isinstance(event, Finished):
            yield event.finish_reason
        elif isinstance(event, Failed):
            yield ApiError(event.code, event.message, inference_ran=True)
        elif output.include_reasoning or not isinstance(event, ReasoningDelta):
            delta = to_delta(event)
            if delta is not None:
                yield delta


def _events(output: RawOutput, delivery: Delivery) -> Iterator[Event]:
    """As the daemon's pipeline drives an interpreter: a final stop ends the feeding."""
    policy = output.policy(delivery)
    interpreter = OutputInterpreter(policy)
    for text, token_id in _tokens(policy.family, output.text, output.chunk_chars):
        for event in interpreter.feed(text, token_id):
            yield event
            if isinstance(event, Failed):
                return
            if isinstance(event, StopGeneration) and event.final:
                yield from interpreter.finish("stop")
                return
    yield from interpreter.finish(output.finish)


def _tokens(family: Family, text: str, chunk_chars: int | None) -> Iterator[tuple[str, int | None]]:
    """Special tokens whole, the text between them in pieces."""
    for stretch, token_id in split_special(family, text):
        size = len(stretch) if token_id is not None or not chunk_chars else chunk_chars
        for start in range(0, len(stretch), size):
            yield stretch[start : start + size], token_id
