"""What a checked request means for the engine and for the interpreter of its output. Pure.

    offer ─check─▶ CheckedRequest ─plan─▶ GenerationRequest ─engine─▶ Admitted ─call_policy─▶ CallPolicy

The table of docs/contract.md ("tool_choice", "parallel_tool_calls") is carried out here, on both contracts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gateway_protocol.families import Family
from gateway_protocol.limits import MESSAGES_DEFAULT
from gateway_protocol.openai_types import AUTO, CheckedRequest, Contract, ToolChoice
from gateway_protocol.template_input import template_tools
from gateway_protocol.validation import check_for_model, check_request
from provider.engine.base import Admitted, Constraint, GenerationRequest, ModelInfo, SamplingParams
from provider.toolcalls import CallPolicy

# gpt-oss knows three efforts; a request for less than the least gets the least.
_HARMONY_EFFORT = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The provider's settings that shape answers: `contract`, `tools.*`, `limits.messages`."""

    contract: Contract = "malibu"
    streaming: Literal["auto", "incremental", "whole"] = "auto"
    force: bool = True
    parallel_when_omitted: Literal["one", "all"] = "one"
    max_messages: int = MESSAGES_DEFAULT


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that can be served by this model, and how."""

    request: CheckedRequest
    info: ModelInfo
    rules: AnswerRules

    @property
    def buffered(self) -> bool:
        return not self.request.stream

    def generation(self, generation_id: str, tenant: str | None) -> GenerationRequest:
        """What the engine is given."""
        req = self.request
        tools = [spec.raw for spec in req.tools]
        return GenerationRequest(
            generation_id=generation_id,
            model=self.info.id,
            messages=req.messages,
            tools=None if not tools or req.tool_choice.kind == "none" else template_tools(req.tools),
            template_kwargs=self._template_kwargs(),
            sampling=_sampling(req),
            max_tokens=req.max_tokens,
            tenant=tenant,
            constraint=self._constraint(tools),
            watched=bool(req.stop),
        )

    def call_policy(self, admitted: Admitted) -> CallPolicy:
        """How the output is read, known once the prompt is rendered and the engine says what holds it."""
        req, think = self.request, self.info.think
        return CallPolicy(
            family=self.info.family,
            tools={spec.name: spec.parameters for spec in req.tools},
            contract=self.rules.contract,
            choice=self._choice(enforced=admitted.call_enforced and self.rules.force),
            parallel=req.parallel_tool_calls,
            parallel_when_omitted=self.rules.parallel_when_omitted,
            strict_tools=frozenset(spec.name for spec in req.tools if spec.strict),
            delivery=self._delivery(admitted),
            think=None if think is None else (think.open, think.close),
            reasoning_open=admitted.reasoning_open,
        )

    def _choice(self, *, enforced: bool) -> ToolChoice:
        choice = self.request.tool_choice
        if choice.forced and not enforced and self.rules.contract == "malibu":
            # Where nothing forces the model, a forced choice is left to it (docs/contract.md, first table).
            return AUTO
        return choice

    def _delivery(self, admitted: Admitted) -> Literal["buffered", "whole", "incremental"]:
        if self.buffered:
            return "buffered"
        if self.rules.streaming == "auto":
            return "incremental" if admitted.call_enforced else "whole"
        return self.rules.streaming

    def _parallel(self) -> bool:
        req, rules = self.request, self.rules
        if req.parallel_tool_calls is not None:
            return req.parallel_tool_calls
        return rules.contract == "strict" or rules.parallel_when_omitted == "all"

    def _constraint(self, tools: list[dict[str, Any]]) -> Constraint | None:
        req = self.request
        held = tools if self.info.family is not Family.NONE else []
        if not held and req.response_format is None:
            return None
        forcing = self.info.can_force and self.rules.force
        if not forcing and req.response_format is None:
            return None
        return Constraint(
            family=self.info.family,
            tools=held,
            choice=self._choice(enforced=forcing) if held else AUTO,
            parallel=self._parallel(),
            response_schema=None if req.response_format is None else req.response_format.schema,
            strict_tools=frozenset(spec.name for spec in req.tools if spec.strict),
            refuse_uncompilable=self.rules.contract == "strict",
        )

    def _template_kwargs(self) -> dict[str, Any]:
        req = self.request
        kwargs: dict[str, Any] = {}
        if req.enable_thinking is not None:
            kwargs["enable_thinking"] = req.enable_thinking
        if req.reasoning_effort is not None and self.info.family is Family.GPT_OSS:
            kwargs["reasoning_effort"] = _HARMONY_EFFORT.get(req.reasoning_effort, "high")
        return kwargs


def _sampling(req: CheckedRequest) -> SamplingParams:
    return SamplingParams(
        temperature=req.temperature,
        top_p=req.top_p,
        top_k=req.top_k,
        min_p=req.min_p,
        seed=req.seed,
        presence_penalty=req.presence_penalty,
        frequency_penalty=req.frequency_penalty,
        repetition_penalty=req.repetition_penalty,
        logit_bias=req.logit_bias,
        top_logprobs=req.top_logprobs if req.logprobs else None,
    )


def check(body: dict[str, Any], rules: AnswerRules) -> CheckedRequest:
    """The gateway's checks once more, since a gateway may not have made them. Raises `ApiError`."""
    return check_request(body, contract=rules.contract, max_messages=rules.max_messages)


def plan(request: CheckedRequest, info: ModelInfo, rules: AnswerRules) -> Plan:
    """What only the model decides. Raises `ApiError`."""
    check_for_model(
        request,
        family=info.family,
        can_force=info.can_force,
        contract=rules.contract,
        force_enabled=rules.force,
        can_constrain=info.can_constrain,
    )
    return Plan(request, info, rules)


def request_chars(body: dict[str, Any]) -> int:
    """About how long a request is, cheaply: the texts of its messages and the number of its tools."""
    messages, tools = body.get("messages"), body.get("tools")
    total = 0
    for message in messages if isinstance(messages, list) else ():
        total += 200
        if isinstance(message, dict):
            total += sum(len(value) for value in message.values() if isinstance(value, str | list))
    return total + 1_000 * (len(tools) if isinstance(tools, list) else 0)
