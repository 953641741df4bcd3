r"""Python literals as JSON text: what models write as `True`, `{'a': 1}` or `name(key='x')`.

Strings, numbers, `True`, `False`, `None` (and JSON's spelling of them), lists, tuples and dictionaries with
string keys. Integers keep every digit: no number is ever converted. Nothing is evaluated.
"""

from __future__ import annotations

import json
import re
from typing import Final

from provider.toolcalls.marks import Fault

_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_QUOTE: Final = re.compile(r"[rR]?('''|\"\"\"|'|\")")
_RUNS: Final = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_CONSTANTS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_ESCAPES: Final = {
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|([0-7]{1,3})|(.))",
    re.DOTALL,
)


class LiteralError(ValueError):
    """The text is no literal; `fault` says why the arguments that it stands in are none."""

    def __init__(self, fault: Fault = Fault.ARGUMENTS) -> None:
        super().__init__(fault.name)
        self.fault = fault


def to_json(text: str, depth: int) -> str:
    """The JSON text of the one literal in `text`, nested at most `depth` levels. Raises `LiteralError`."""
    reader = _Reader(text)
    out = reader.value(depth)
    if not reader.at_end():
        raise LiteralError
    return out


def number(text: str) -> str | None:
    """A number that Python reads and JSON doesn't (`+3`, `.5`, `5.`, `007`), digit for digit; else `None`."""
    if not _NUMBER.fullmatch(text):
        return None
    sign = "-" if text.startswith("-") else ""
    mantissa, exponent, power = _split_exponent(text.lstrip("+-"))
    whole, point, fraction = mantissa.partition(".")
    whole = whole.lstrip("0") or "0"
    return sign + whole + (f".{fraction or '0'}" if point else "") + exponent + power


def _split_exponent(text: str) -> tuple[str, str, str]:
    for mark in "eE":
        if mark in text:
            return text.partition(mark)
    return text, "", ""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def at_end(self) -> bool:
        return not self._peek()

    def value(self, depth: int) -> str:
        char = self._peek()
        if char and char in "[({":
            if depth < 1:
                raise LiteralError(Fault.DEPTH)
            return self._dict(depth - 1) if char == "{" else self._list(depth - 1)
        if self._match(_QUOTE, peek=True):
            return json.dumps(self._string(), ensure_ascii=False)
        if spelled := self._match(_NUMBER):
            read = number(spelled)
            assert read is not None
            return read
        constant = _CONSTANTS.get(self._match(_WORD))
        if constant is None:
            raise LiteralError
        return constant

    def _peek(self) -> str:
        blanks = _BLANKS.match(self._text, self._position)
        self._position = self._position if blanks is None else blanks.end()
        return self._text[self._position : self._position + 1]

    def _match(self, pattern: re.Pattern[str], *, peek: bool = False) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            return ""
        if not peek:
            self._position = match.end()
        return match.group()

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._position += 1
        return True

    def _list(self, depth: int) -> str:
        closer = "]" if self._take("[") else ")"
        if closer == ")":
            self._take("(")
        items: list[str] = []
        commas = 0
        while not self._take(closer):
            if len(items) > commas:
                raise LiteralError
            items.append(self.value(depth))
            commas += self._take(",")
        if closer == ")" and len(items) == 1 and not commas:
            return items[0]
        return "[" + ", ".join(items) + "]"

    def _dict(self, depth: int) -> str:
        self._take("{")
        items: list[str] = []
        keys: set[str] = set()
        commas = 0
        while not self._take("}"):
            if len(items) > commas:
                raise LiteralError
            self._peek()
            key = self._string()
            if key in keys:
                raise LiteralError(Fault.REPEATED)
            keys.add(key)
            if not self._take(":"):
                raise LiteralError
            items.append(f"{json.dumps(key, ensure_ascii=False)}: {self.value(depth)}")
            commas += self._take(",")
        return "{" + ", ".join(items) + "}"

    def _string(self) -> str:
        opening = self._match(_QUOTE)
        if not opening:
            raise LiteralError
        raw, quote = opening[0] in "rR", opening.lstrip("rR")
        pieces: list[str] = []
        while not self._text.startswith(quote, self._position):
            start = self._position
            if start >= len(self._text):
                raise LiteralError
            if self._text[start] == "\\" and not raw:
                pieces.append(self._escape())
                continue
            # A raw string keeps its backslash, which still guards the quote behind it.
            self._position += 2 if self._text[start] == "\\" else 1
            self._match(_RUNS[quote[0]])
            pieces.append(self._text[start : self._position])
        self._position += len(quote)
        return _paired("".join(pieces))

    def _escape(self) -> str:
        match = _ESCAPE.match(self._text, self._position)
        if match is None:
            raise LiteralError
        self._position = match.end()
        for group, base in ((1, 16), (2, 16), (3, 16), (4, 8)):
            if match.group(group):
                return chr(int(match.group(group), base))
        char = match.group(5)
        if char in "xuUN":
            raise LiteralError
        return _ESCAPES.get(char, "\\" + char)


def _paired(text: str) -> str:
    """Two surrogates, as `\\ud83d\\ude80` leaves them, become the character they mean; a lone one goes."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
