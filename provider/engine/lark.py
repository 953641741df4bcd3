"""The few pieces of llguidance's Lark dialect that the grammars are written in. Pure text.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md: `/…/` is a Rust regex, `&` and `~` on
terminals are intersection and complement, `rule[lazy]` ends at its first match, `%json {…}` is a JSON Schema,
`<name>` a special token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

ANYTHING: Final = "(?s:.*)"
# The templates' own spacing: fewer free tokens, and no endless blanks.
_SPACED: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# What a model may write when nobody forces it.
_LOOSE: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def regex(pattern: str) -> str:
    """A terminal's `/…/`; `pattern` is in Rust's syntax, its slashes and line ends not yet escaped."""
    return "/" + pattern.replace("/", r"\/").replace("\n", r"\n") + "/"


def escaped(text: str) -> str:
    """`text` as a regex that matches just it."""
    return "".join(f"\\{char}" if char in r"\.+*?()|[]{}^$#&-~" else char for char in text)


def holds(texts: Iterable[str]) -> str:
    """A regex of every text that holds one of `texts` (regexes)."""
    return f"{ANYTHING}({'|'.join(texts)}){ANYTHING}"


def without(pattern: str, excluded: Iterable[str]) -> str:
    """A terminal: what `pattern` matches and none of the whole-text regexes `excluded` does."""
    return " & ~".join(regex(part) for part in (pattern, *excluded))


def alternatives(parts: Iterable[str]) -> str:
    return " | ".join(parts)


def json_value(schema: Mapping[str, Any], *, lenient: bool, loose: bool) -> str:
    guidance = {**(_LOOSE if loose else _SPACED), "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": guidance}, ensure_ascii=False)


class Rules:
    """The rules of one grammar, in order. `tokens`: markers that are tokens of the vocabulary."""

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = tokens
        self._lines: dict[str, str] = {}

    def add(self, name: str, body: str, *, lazy: bool = False) -> str:
        """Define a rule (or, in capitals, a terminal); returns its name for use in others."""
        self._lines[name] = f"{name}{'[lazy]' if lazy else ''}: {body}"
        return name.partition("::")[0]

    def marker(self, text: str) -> str:
        return text if text in self._tokens else literal(text)

    def is_token(self, text: str) -> bool:
        return text in self._tokens

    def text(self) -> str:
        return "\n".join(self._lines.values()) + "\n"
