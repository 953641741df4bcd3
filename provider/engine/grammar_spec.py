"""What a grammar is made of: the request's side of it, and the rules that all families share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from gateway_protocol.families import Family
from gateway_protocol.limits import HISTORY_TOOL_CALLS
from gateway_protocol.openai_types import AUTO, ToolChoice
from provider.engine.base import ThinkMarkers
from provider.engine.lark import ANYTHING, Rules, alternatives, escaped, holds, json_value, literal, regex
from provider.engine.schemas import Schema
from provider.toolcalls.families import CALL_CLOSER, CALL_OPENER, FUNCTION_OPENER, HARMONY_TOKENS, PYTHON_TAG


class Markup(Enum):
    """The ways in which models write calls."""

    HERMES = "hermes"
    XML = "xml"
    LLAMA = "llama"
    HARMONY = "harmony"


# What may be one token, by family. Harmony's markers must be.
MARKERS: Final[Mapping[Family, tuple[str, ...]]] = MappingProxyType(
    {
        Family.QWEN: (CALL_OPENER, CALL_CLOSER),
        Family.LLAMA: (PYTHON_TAG,),
        Family.GPT_OSS: tuple(text for text, _ in HARMONY_TOKENS.values()),
        Family.NONE: (),
    }
)


@dataclass(frozen=True, slots=True)
class GrammarTool:
    """A declared function. `schema`: as `schemas` prepared it. `lenient`: keywords may be dropped from it."""

    name: str
    schema: Schema
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """Everything a grammar depends on.

    `answer`: the schema of the visible answer, if the request gives one. `tokens`: the family's markers that
    are tokens of the vocabulary. `think`: the markers of reasoning where they are text; where they are tokens
    the row leaves reasoning out. `lead`: blank lines may come first (behind reasoning). `reasoning_open`: the
    prompt ends inside `think`.
    """

    markup: Markup
    tools: tuple[GrammarTool, ...]
    choice: ToolChoice = AUTO
    parallel: bool = False
    answer: GrammarTool | None = None
    tokens: frozenset[str] = frozenset()
    think: ThinkMarkers | None = None
    reasoning_open: bool = False
    lead: bool = False

    @property
    def forced(self) -> bool:
        return self.choice.forced

    @property
    def owes(self) -> bool:
        """The answer can't end in free text or in reasoning: a call or a schema has to be served."""
        return self.forced or self.answer is not None

    @property
    def callable(self) -> tuple[GrammarTool, ...]:
        """The functions that this answer may call."""
        if self.choice.kind == "none":
            return ()
        if self.choice.kind == "named":
            return tuple(tool for tool in self.tools if tool.name == self.choice.name)
        return self.tools


def native_markup(family: Family, chat_template: str) -> Markup:
    """How a model of this family was taught to write calls, read from the template that taught it."""
    if family is Family.GPT_OSS:
        return Markup.HARMONY
    if family is Family.LLAMA:
        return Markup.LLAMA
    return Markup.XML if FUNCTION_OPENER in chat_template else Markup.HERMES


def text_exclusions(spec: GrammarSpec, *openers: str) -> list[str]:
    """What free text must not be: a holder of one of `openers`, or reasoning (which has its own rule)."""
    excluded = [holds([escaped(opener) for opener in openers])]
    if spec.think is not None and not spec.reasoning_open:
        excluded.append(escaped(spec.think.open) + ANYTHING)
    return excluded


def lead(spec: GrammarSpec, rules: Rules) -> str:
    return rules.add("LEAD", regex(r"\n{0,2}")) + " " if spec.lead or spec.think is not None else ""


def answer_value(spec: GrammarSpec, rules: Rules) -> str:
    assert spec.answer is not None
    value = json_value(spec.answer.schema, lenient=spec.answer.lenient, loose=False)
    return lead(spec, rules) + rules.add("value", value)


def repeated(spec: GrammarSpec, separator: str, call: str) -> str:
    """Further calls behind the first: the next request must be able to carry them all."""
    return f" ({separator} {call}){{0,{HISTORY_TOOL_CALLS - 1}}}" if spec.parallel else ""


def json_calls(spec: GrammarSpec, rules: Rules, key: str, *, loose: bool) -> str:
    """Each function as `{"name": …, "<key>": {…}}`."""
    names = []
    for index, tool in enumerate(spec.callable):
        value = arguments(rules, index, tool, loose=loose)
        if loose:
            head = regex(rf'\{{ ?"name": ?"{escaped(tool.name)}", ?"{key}": ?')
        else:
            head = literal(f'{{"name": "{tool.name}", "{key}": ')
        names.append(rules.add(f"j{index}", f"{head} {value} {literal('}')}"))
    return rules.add("json", alternatives(names))


def arguments(rules: Rules, index: int, tool: GrammarTool, *, loose: bool) -> str:
    return rules.add(f"a{index}", json_value(tool.schema, lenient=tool.lenient, loose=loose))
