"""gpt-oss's calls: Harmony messages, told apart by tokens. Pure.

`<|call|>` ends a call and the answer with it; `<|return|>` is an end token.
"""

from __future__ import annotations

from collections.abc import Sequence

from provider.engine.grammar_spec import GrammarSpec, arguments
from provider.engine.lark import ANYTHING, Rules, alternatives, json_value, literal, regex


def harmony(spec: GrammarSpec, rules: Rules) -> str:
    rules.add("TEXT", regex(ANYTHING))
    rules.add("next", '<|end|> <|start|> "assistant"')
    # A preamble on the commentary channel is visible, so an answer that must be JSON has none.
    channels = '"analysis"' if spec.answer is not None else '("analysis" | "commentary")'
    rules.add("aside", f"<|channel|> {channels} <|message|> TEXT next")
    endings = []
    if spec.callable:
        rules.add("call", alternatives(_calls(spec, rules)))
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


def _calls(spec: GrammarSpec, rules: Rules) -> Sequence[str]:
    """A call's message. Unforced, the recipient may stand in the role's place, the channel be the other one,
    and the content's type may be missing."""
    names = []
    for index, tool in enumerate(spec.callable):
        to = literal(f" to=functions.{tool.name}")
        if spec.forced:
            head = f'<|channel|> "commentary" {to} " " <|constrain|> "json"'
        else:
            head = f"(<|channel|> channel {to} kind | {to} <|channel|> channel kind)"
        names.append(f"{head} <|message|> {arguments(rules, index, tool, loose=True)} <|call|>")
    if not spec.forced:
        rules.add("channel", '"commentary" | "analysis"')
        rules.add("kind", '(" "? <|constrain|> "json" | " json" | " code")?')
    return names
