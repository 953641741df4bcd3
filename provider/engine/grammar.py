"""From a request's tools to the grammar that its decoder is held to: Lark text for llguidance. Pure.

Each way of writing calls is a `Markup`; a model's own is forced, and in `auto` each one that its family's
parser reads is accepted. The grammar ends a call where the parser (`provider.toolcalls`) ends it, and free
text never holds an opener, not even spelled out in pieces: the parser would open a call there that no
grammar has checked.

    required, named   start: LEAD call (SEP call)*     none     start: TEXT
    auto              start: TEXT | TEXT? call …       answer   start: LEAD %json {…}

Where a marker is no token of the vocabulary, the same rules are written over its text. Reasoning between
markers that are tokens is not the grammar's: its row starts behind it (`masks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from gateway_protocol.families import Family
from gateway_protocol.limits import HISTORY_TOOL_CALLS
from provider.engine.base import ThinkMarkers
from provider.engine.lark import (
    ANYTHING,
    Rules,
    alternatives,
    escaped,
    holds,
    json_value,
    literal,
    regex,
    without,
)
from provider.engine.schemas import Schema
from provider.engine.xml_values import parameter_rules
from provider.toolcalls.families import (
    CALL_CLOSER,
    CALL_OPENER,
    CALL_SEPARATOR,
    FUNCTION_CLOSER,
    FUNCTION_OPENER,
    HARMONY_TOKENS,
    LLAMA_SEPARATOR,
    PYTHON_TAG,
)


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

    `choice`: "auto", "required", "none" or a function's name. `answer`: the schema of the visible answer, if
    the request gives one. `tokens`: the family's markers that are tokens of the vocabulary. `think`: the
    markers of reasoning where they are text; where they are tokens the row leaves reasoning out. `lead`:
    blank lines may come first (behind reasoning). `reasoning_open`: the prompt ends inside `think`.
    """

    markup: Markup
    tools: tuple[GrammarTool, ...]
    choice: str = "auto"
    parallel: bool = False
    answer: GrammarTool | None = None
    tokens: frozenset[str] = frozenset()
    think: ThinkMarkers | None = None
    reasoning_open: bool = False
    lead: bool = False

    @property
    def forced(self) -> bool:
        return self.choice not in ("auto", "none")

    @property
    def callable(self) -> tuple[GrammarTool, ...]:
        """The functions that this answer may call."""
        if self.choice == "none":
            return ()
        named = tuple(tool for tool in self.tools if tool.name == self.choice)
        return named if self.forced and self.choice != "required" else self.tools


def native_markup(family: Family, chat_template: str) -> Markup:
    """How a model of this family was taught to write calls, read from the template that taught it."""
    if family is Family.GPT_OSS:
        return Markup.HARMONY
    if family is Family.LLAMA:
        return Markup.LLAMA
    return Markup.XML if FUNCTION_OPENER in chat_template else Markup.HERMES


def build(spec: GrammarSpec) -> str:
    """The grammar as Lark text. `spec` must name at least one function, an answer or `choice` "none"."""
    rules = Rules(spec.tokens)
    rules.add("start", "")  # its place is first; written last
    body = _BUILDERS[spec.markup](spec, rules)
    rules.add("start", _after_reasoning(spec, rules, body))
    return rules.text()


def _after_reasoning(spec: GrammarSpec, rules: Rules, body: str) -> str:
    """`body`, behind reasoning whose markers are text. Left open, reasoning is all there is."""
    if spec.think is None:
        return body
    close = escaped(spec.think.close)
    rules.add("thought", regex(ANYTHING + close), lazy=True)
    rules.add("answer", body)
    paths = (
        ["thought answer"]
        if spec.reasoning_open
        else [f"{literal(spec.think.open)} thought answer", "answer"]
    )
    if not spec.forced:
        rules.add("UNCLOSED", without(ANYTHING, (holds([close]),)))
        paths.append("UNCLOSED" if spec.reasoning_open else f"{literal(spec.think.open)} UNCLOSED")
    return alternatives(paths)


def _text_exclusions(spec: GrammarSpec, *openers: str) -> list[str]:
    """What free text must not be: a holder of one of `openers`, or reasoning (which has its own rule)."""
    excluded = [holds([escaped(opener) for opener in openers])]
    if spec.think is not None and not spec.reasoning_open:
        excluded.append(escaped(spec.think.open) + ANYTHING)
    return excluded


def _lead(spec: GrammarSpec, rules: Rules) -> str:
    return rules.add("LEAD", regex(r"\n{0,2}")) + " " if spec.lead or spec.think is not None else ""


def _answer(spec: GrammarSpec, rules: Rules) -> str:
    assert spec.answer is not None
    value = json_value(spec.answer.schema, lenient=spec.answer.lenient, loose=False)
    return _lead(spec, rules) + rules.add("value", value)


def _repeated(spec: GrammarSpec, separator: str, call: str) -> str:
    """Further calls behind the first: the next request must be able to carry them all."""
    return f" ({separator} {call}){{0,{HISTORY_TOOL_CALLS - 1}}}" if spec.parallel else ""


# -- Qwen: Hermes JSON and function-XML ------------------------------------------------------------


def _qwen(spec: GrammarSpec, rules: Rules) -> str:
    if spec.answer is not None and not spec.callable:
        return _answer(spec, rules)
    exclusions = _text_exclusions(spec, CALL_OPENER, FUNCTION_OPENER)
    if not spec.callable:
        return rules.add("TEXT", without(ANYTHING, exclusions))
    if spec.forced:
        return _qwen_forced(spec, rules)
    opener = rules.marker(CALL_OPENER)
    _qwen_loose_call(spec, rules)
    anyhow = f"({opener} wrapped | {literal(FUNCTION_OPENER)} bare)"
    more = _repeated(spec, f"{literal(CALL_SEPARATOR)}?", anyhow)
    if spec.answer is not None:
        return alternatives((_answer(spec, rules), f"{_lead(spec, rules)}{opener} wrapped{more}"))
    text = rules.add("TEXT", without(ANYTHING, exclusions))
    before = _text_exclusions(spec, CALL_OPENER)
    rules.add("upto_function", without(ANYTHING + escaped(FUNCTION_OPENER), before), lazy=True)
    paths = [f"upto_function bare{more}"]
    if rules.is_token(CALL_OPENER):
        paths.insert(0, f"{text} ({opener} wrapped{more})?")
    else:
        before = _text_exclusions(spec, FUNCTION_OPENER)
        rules.add("upto_call", without(ANYTHING + escaped(CALL_OPENER), before), lazy=True)
        paths[:0] = [text, f"upto_call wrapped{more}"]
    return alternatives(paths)


def _qwen_forced(spec: GrammarSpec, rules: Rules) -> str:
    if spec.markup is Markup.HERMES:
        inside = _json_calls(spec, rules, "arguments", loose=False)
    else:
        inside = f"{literal(FUNCTION_OPENER)} {_xml_functions(spec, rules, loose=False)}"
    rules.add("call", f'{rules.marker(CALL_OPENER)} "\\n" {inside} "\\n" {rules.marker(CALL_CLOSER)}')
    return f"{_lead(spec, rules)}call{_repeated(spec, literal(CALL_SEPARATOR), 'call')}"


def _qwen_loose_call(spec: GrammarSpec, rules: Rules) -> None:
    """`wrapped` and `bare`: a call behind its opener, in either markup: the family's models mix them."""
    close = rules.marker(CALL_CLOSER)
    functions = _xml_functions(spec, rules, loose=True)
    inside = f"{_json_calls(spec, rules, 'arguments', loose=True)} | {literal(FUNCTION_OPENER)} {functions}"
    rules.add("wrapped", f'"\\n"? ({inside}) "\\n"? {close}')
    rules.add("bare", f'{functions} ("\\n"? {close})?')


def _xml_functions(spec: GrammarSpec, rules: Rules, *, loose: bool) -> str:
    """Each function behind `<function=`, up to and with its closer."""
    names = []
    for index, tool in enumerate(spec.callable):
        inner = parameter_rules(rules, index, tool.schema, lenient=tool.lenient, loose=loose)
        line_end = '"\\n"?' if loose else '"\\n"'
        names.append(
            rules.add(
                f"x{index}", f"{literal(tool.name + '>')} {line_end} {inner} {literal(FUNCTION_CLOSER)}"
            )
        )
    return rules.add("xml", alternatives(names))


def _json_calls(spec: GrammarSpec, rules: Rules, key: str, *, loose: bool) -> str:
    """Each function as `{"name": …, "<key>": {…}}`."""
    names = []
    for index, tool in enumerate(spec.callable):
        arguments = _arguments(rules, index, tool, loose=loose)
        if loose:
            head = regex(rf'\{{ ?"name": ?"{escaped(tool.name)}", ?"{key}": ?')
        else:
            head = literal(f'{{"name": "{tool.name}", "{key}": ')
        names.append(rules.add(f"j{index}", f"{head} {arguments} {literal('}')}"))
    return rules.add("json", alternatives(names))


def _arguments(rules: Rules, index: int, tool: GrammarTool, *, loose: bool) -> str:
    return rules.add(f"a{index}", json_value(tool.schema, lenient=tool.lenient, loose=loose))


# -- Llama: a JSON object that begins a line opens the calls --------------------------------------

_LLAMA_BEGINS: Final = rf'({ANYTHING}\n)?[\s;]*\{{\s*("(type|id)"\s*:\s*[^,{{}}\n]*,\s*)*'


def _llama(spec: GrammarSpec, rules: Rules) -> str:
    if spec.answer is not None and not spec.callable:
        return _answer(spec, rules)
    if spec.forced:
        rules.add("call", _json_calls(spec, rules, "parameters", loose=False))
        return f"{_lead(spec, rules)}call{_repeated(spec, literal(f'{LLAMA_SEPARATOR} '), 'call')}"
    # What the parser may take for a call is none of free text's; any other object is.
    call_like = rf'{_LLAMA_BEGINS}"(name|parameters|arguments)"{ANYTHING}'
    text = without(ANYTHING, (*_text_exclusions(spec, PYTHON_TAG), call_like))
    if not spec.callable:
        return rules.add("TEXT", text)
    rules.add("call", _json_calls(spec, rules, "parameters", loose=True))
    more = _repeated(spec, regex(rf" ?{LLAMA_SEPARATOR}? ?\n?"), "call")
    tagged = f"{rules.marker(PYTHON_TAG)} call{more}"
    if spec.answer is not None:
        return alternatives((_answer(spec, rules), tagged, f"call{more}"))
    rules.add("TEXT", text)
    rules.add("upto_name", without(rf'{_LLAMA_BEGINS}"name"', _text_exclusions(spec, PYTHON_TAG)), lazy=True)
    rest = rules.add("named", alternatives(_llama_named(spec, rules)))
    paths = ["TEXT", f"upto_name {rest}{more}"]
    if rules.is_token(PYTHON_TAG):
        paths[0] = f"TEXT ({tagged})?"
    return alternatives(paths)


def _llama_named(spec: GrammarSpec, rules: Rules) -> Iterator[str]:
    """Each function behind `{"name"`."""
    for index, tool in enumerate(spec.callable):
        head = regex(rf': ?"{escaped(tool.name)}", ?"parameters": ?')
        yield f"{head} a{index} {literal('}')}"


# -- gpt-oss: Harmony messages, told apart by tokens -----------------------------------------------


def _harmony(spec: GrammarSpec, rules: Rules) -> str:
    rules.add("TEXT", regex(ANYTHING))
    rules.add("next", '<|end|> <|start|> "assistant"')
    rules.add("aside", '<|channel|> ("analysis" | "commentary") <|message|> TEXT next')
    endings = []
    if spec.callable:
        rules.add("call", alternatives(_harmony_calls(spec, rules)))
        endings.append("call")
    if not spec.forced:
        final = '<|channel|> "final" <|message|> TEXT'
        if spec.answer is not None:
            value = rules.add(
                "value", json_value(spec.answer.schema, lenient=spec.answer.lenient, loose=True)
            )
            final = f'<|channel|> "final" (" "? <|constrain|> "json")? <|message|> {value}'
        endings.append(rules.add("final", final))
    return f"aside* ({alternatives(endings)})"


def _harmony_calls(spec: GrammarSpec, rules: Rules) -> Sequence[str]:
    """A call's message. Unforced, the recipient may stand in the role's place, the channel be the other one,
    and the content's type may be missing."""
    names = []
    for index, tool in enumerate(spec.callable):
        to = literal(f" to=functions.{tool.name}")
        if spec.forced:
            head = f'<|channel|> "commentary" {to} " " <|constrain|> "json"'
        else:
            head = f"(<|channel|> channel {to} kind | {to} <|channel|> channel kind)"
        names.append(f"{head} <|message|> {_arguments(rules, index, tool, loose=True)} <|call|>")
    if not spec.forced:
        rules.add("channel", '"commentary" | "analysis"')
        rules.add("kind", '(" "? <|constrain|> "json" | " json" | " code")?')
    return names


_BUILDERS: Final[Mapping[Markup, Callable[[GrammarSpec, Rules], str]]] = MappingProxyType(
    {Markup.HERMES: _qwen, Markup.XML: _qwen, Markup.LLAMA: _llama, Markup.HARMONY: _harmony}
)
