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

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from provider.engine.grammar_harmony import harmony
from provider.engine.grammar_llama import llama
from provider.engine.grammar_qwen import qwen
from provider.engine.grammar_spec import GrammarSpec, Markup
from provider.engine.lark import ANYTHING, Rules, alternatives, escaped, holds, literal, regex, without

_BUILDERS: Final[Mapping[Markup, Callable[[GrammarSpec, Rules], str]]] = MappingProxyType(
    {Markup.HERMES: qwen, Markup.XML: qwen, Markup.LLAMA: llama, Markup.HARMONY: harmony}
)


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
    if not spec.owes:
        rules.add("UNCLOSED", without(ANYTHING, (holds([close]),)))
        paths.append("UNCLOSED" if spec.reasoning_open else f"{literal(spec.think.open)} UNCLOSED")
    return alternatives(paths)
