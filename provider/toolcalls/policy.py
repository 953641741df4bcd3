"""What one request allows its answer to hold: which calls, how many, delivered how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway_protocol.families import Family
from gateway_protocol.openai_types import AUTO, ToolChoice

Delivery = Literal["buffered", "whole", "incremental"]
Cause = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """The request's half of docs/contract.md, as far as the model's output is concerned.

    `tools`: the parameter schema of each declared function by name, `None` where it has none. `choice`,
    `parallel`: as the buyer sent them. `think`: the strings that open and close reasoning, if the tokenizer
    has them. `reasoning_open`: the prompt ends inside reasoning.
    """

    family: Family
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    contract: Literal["malibu", "strict"] = "malibu"
    choice: ToolChoice = AUTO
    parallel: bool | None = None
    parallel_when_omitted: Literal["one", "all"] = "one"
    strict_tools: frozenset[str] = frozenset()
    delivery: Delivery = "whole"
    think: tuple[str, str] | None = None
    reasoning_open: bool = False

    @property
    def stops_after_first_call(self) -> bool:
        """Generation ends with the first complete call."""
        if self.contract == "strict":
            return self.parallel is False
        return self.parallel is not True and (self.parallel is False or self.parallel_when_omitted == "one")

    @property
    def refuses_calls(self) -> bool:
        """A call breaks a promise of the `strict` contract: it was told that none may come."""
        return self.contract == "strict" and (not self.tools or self.choice.kind == "none")

    @property
    def reads_calls(self) -> bool:
        """Whether call markup in the output means anything.

        Without tools a text family's markup is plain text under `malibu`; Harmony's messages are addressed
        by tokens, never text, so one to a function has to be dealt with.
        """
        if self.family is Family.NONE:
            return False
        return bool(self.tools) or self.contract == "strict" or self.family is Family.GPT_OSS
