"""Which markup each family writes: one row a family, its spellings shared with the grammar builder.

`MARKUP[family]` is what the parser is run by. A family that writes several formats (Qwen's models mix them)
lists them in the order in which they are tried behind an opener.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from gateway_protocol.families import Family
from gateway_protocol.limits import PARAMETER_NAME_CHARS
from provider.toolcalls.formats.body import Body
from provider.toolcalls.formats.function_xml import XmlBody
from provider.toolcalls.formats.json_form import HERMES, LLAMA_BARE, LLAMA_TAGGED, JsonBody
from provider.toolcalls.formats.python_form import OPENING, OPENING_BEGUN, PythonBody
from provider.toolcalls.lexer import Kind, Lexer

# --- spellings, as the chat templates have them ----------------------------------------------------

CALL_OPENER: Final = "<tool_call>"
CALL_CLOSER: Final = "</tool_call>"
CALL_SEPARATOR: Final = "\n"
FUNCTION_OPENER: Final = "<function="
FUNCTION_CLOSER: Final = "</function>"
PARAMETER_OPENER: Final = "<parameter="
PARAMETER_CLOSER: Final = "</parameter>"
PYTHON_TAG: Final = "<|python_tag|>"
LLAMA_SEPARATOR: Final = ";"

# Harmony's special tokens, by ID in o200k_harmony: their text in any other token is text.
HARMONY_TOKENS: Final[Mapping[int, tuple[str, Kind]]] = MappingProxyType(
    {
        199999: ("<|endoftext|>", Kind.END_OF_TURN),
        200002: ("<|return|>", Kind.RETURN),
        200003: ("<|constrain|>", Kind.CONSTRAIN),
        200005: ("<|channel|>", Kind.CHANNEL),
        200006: ("<|start|>", Kind.START),
        200007: ("<|end|>", Kind.END),
        200008: ("<|message|>", Kind.MESSAGE),
        200012: ("<|call|>", Kind.CALL),
    }
)

Schema = Mapping[str, Any] | None
Schemas = Mapping[str, Schema]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a call.

    `begins_with`: the kind of the first lexeme, white space aside. `recognise`: for text, whether the call
    begins so: yes, no, or `None` while too little is there. `body`: makes the reader, from the function's
    schema (where its name is in the first lexeme) and whether a wrapper is open.
    """

    name: str
    begins_with: Kind
    recognise: Callable[[str], bool | None]
    body: Callable[[Schema, bool], Body]


@dataclass(frozen=True, slots=True)
class Markup:
    """One family's row. `wrapped`: formats behind the opener. `bare_function`: `<function=…>` opens a call
    of its own. `bare_object`: so does a JSON object at the beginning of a line. `separators`: characters
    that may stand between two calls beside white space."""

    fixed: Mapping[str, Kind] = field(default_factory=dict)
    named: Mapping[str, Kind] = field(default_factory=dict)
    wrapped: tuple[Format, ...] = ()
    bare_function: Format | None = None
    bare_object: Format | None = None
    separators: str = ""

    def lexer(self, schemas: Schemas, think: tuple[str, str] | None) -> Lexer:
        """Cut this family's output. A parameter's name may be as long as the longest that a tool declares."""
        fixed = dict(self.fixed)
        if think is not None:
            markers = zip(think, (Kind.THINK_OPEN, Kind.THINK_CLOSE), strict=True)
            fixed |= {marker: kind for marker, kind in markers if marker}
        names = [PARAMETER_NAME_CHARS]
        for schema in schemas.values():
            properties = (schema or {}).get("properties")
            names += map(len, properties) if isinstance(properties, Mapping) else ()
        return Lexer(fixed, self.named, max(names))

    def begins_call(self, text: str) -> bool:
        """Whether `text`, not empty, is the beginning of an opener."""
        return bool(text) and any(
            marker.startswith(text)
            for marker, kind in (*self.fixed.items(), *self.named.items())
            if kind in (Kind.CALL_OPEN, Kind.FUNCTION_OPEN)
        )


def _begins_object(text: str) -> bool:
    return text.lstrip().startswith("{")


def _begins_python_call(text: str) -> bool | None:
    if OPENING.match(text):
        return True
    return None if OPENING_BEGUN.fullmatch(text) else False


def _always(_text: str) -> bool:
    return True


HERMES_JSON: Final = Format("hermes", Kind.TEXT, _begins_object, lambda _schema, _wrapped: JsonBody(HERMES))
FUNCTION_XML: Final = Format(
    "function_xml", Kind.FUNCTION_OPEN, _always, lambda schema, wrapped: XmlBody(schema, wrapped=wrapped)
)
PYTHON_FORM: Final = Format(
    "python_form", Kind.TEXT, _begins_python_call, lambda _schema, _wrapped: PythonBody()
)
LLAMA_JSON: Final = Format(
    "llama_json", Kind.TEXT, _begins_object, lambda _schema, _wrapped: JsonBody(LLAMA_TAGGED)
)
LLAMA_BARE_JSON: Final = Format(
    "llama_bare_json", Kind.TEXT, _begins_object, lambda _schema, _wrapped: JsonBody(LLAMA_BARE)
)

_QWEN: Final = Markup(
    fixed={
        CALL_OPENER: Kind.CALL_OPEN,
        CALL_CLOSER: Kind.CALL_CLOSE,
        FUNCTION_CLOSER: Kind.FUNCTION_CLOSE,
        PARAMETER_CLOSER: Kind.PARAMETER_CLOSE,
        "<|im_end|>": Kind.END_OF_TURN,
        "<|endoftext|>": Kind.END_OF_TURN,
    },
    named={FUNCTION_OPENER: Kind.FUNCTION_OPEN, PARAMETER_OPENER: Kind.PARAMETER_OPEN},
    wrapped=(HERMES_JSON, FUNCTION_XML, PYTHON_FORM),
    bare_function=FUNCTION_XML,
)
_LLAMA: Final = Markup(
    fixed={
        PYTHON_TAG: Kind.CALL_OPEN,
        "<|eot_id|>": Kind.END_OF_TURN,
        "<|eom_id|>": Kind.END_OF_TURN,
        "<|end_of_text|>": Kind.END_OF_TURN,
    },
    wrapped=(LLAMA_JSON,),
    bare_object=LLAMA_BARE_JSON,
    separators=LLAMA_SEPARATOR,
)

# Harmony is not in here: its messages are told by token ID (`formats.harmony`).
MARKUP: Final[Mapping[Family, Markup]] = MappingProxyType(
    {Family.QWEN: _QWEN, Family.LLAMA: _LLAMA, Family.NONE: Markup()}
)
