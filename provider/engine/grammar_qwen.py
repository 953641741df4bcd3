"""Qwen's calls: Hermes JSON and function-XML, in `<tool_call>` or, the latter, bare. Pure.

Forced, a model writes what its template taught it. Left to itself it may write either: models of this family
mix them, and the parser reads both.
"""

from __future__ import annotations

from provider.engine.grammar_spec import (
    GrammarSpec,
    Markup,
    answer_value,
    json_calls,
    lead,
    repeated,
    text_exclusions,
)
from provider.engine.lark import ANYTHING, Rules, alternatives, escaped, literal, without
from provider.engine.xml_values import parameter_rules
from provider.toolcalls.families import (
    CALL_CLOSER,
    CALL_OPENER,
    CALL_SEPARATOR,
    FUNCTION_CLOSER,
    FUNCTION_OPENER,
)


def qwen(spec: GrammarSpec, rules: Rules) -> str:
    if spec.answer is not None and not spec.callable:
        return answer_value(spec, rules)
    exclusions = text_exclusions(spec, CALL_OPENER, FUNCTION_OPENER)
    if not spec.callable:
        return rules.add("TEXT", without(ANYTHING, exclusions))
    if spec.forced:
        return _forced(spec, rules)
    opener = rules.marker(CALL_OPENER)
    _loose_call(spec, rules)
    anyhow = f"({opener} wrapped | {literal(FUNCTION_OPENER)} bare)"
    more = repeated(spec, f"{literal(CALL_SEPARATOR)}?", anyhow)
    if spec.answer is not None:
        return alternatives((answer_value(spec, rules), f"{lead(spec, rules)}{opener} wrapped{more}"))
    text = rules.add("TEXT", without(ANYTHING, exclusions))
    before = text_exclusions(spec, CALL_OPENER)
    rules.add("upto_function", without(ANYTHING + escaped(FUNCTION_OPENER), before), lazy=True)
    paths = [f"upto_function bare{more}"]
    if rules.is_token(CALL_OPENER):
        paths.insert(0, f"{text} ({opener} wrapped{more})?")
    else:
        before = text_exclusions(spec, FUNCTION_OPENER)
        rules.add("upto_call", without(ANYTHING + escaped(CALL_OPENER), before), lazy=True)
        paths[:0] = [text, f"upto_call wrapped{more}"]
    return alternatives(paths)


def _forced(spec: GrammarSpec, rules: Rules) -> str:
    if spec.markup is Markup.HERMES:
        inside = json_calls(spec, rules, "arguments", loose=False)
    else:
        inside = f"{literal(FUNCTION_OPENER)} {_xml_functions(spec, rules, loose=False)}"
    rules.add("call", f'{rules.marker(CALL_OPENER)} "\\n" {inside} "\\n" {rules.marker(CALL_CLOSER)}')
    return f"{lead(spec, rules)}call{repeated(spec, literal(CALL_SEPARATOR), 'call')}"


def _loose_call(spec: GrammarSpec, rules: Rules) -> None:
    """`wrapped` and `bare`: a call behind its opener, in either markup: the family's models mix them."""
    close = rules.marker(CALL_CLOSER)
    functions = _xml_functions(spec, rules, loose=True)
    inside = f"{json_calls(spec, rules, 'arguments', loose=True)} | {literal(FUNCTION_OPENER)} {functions}"
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
