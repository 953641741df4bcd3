"""The scripted engine's file: what it answers to whom, and with which timing. Pure but for reading the file.

JSON Lines; the first line whose `match` is in the last message's text answers:

    {"match": "weather", "text": "Sunny.", "finish_reason": "stop", "chars_per_token": 4, "ms_per_token": 0}

`match` absent: every message. `prefill_ms`: time before the first token. `fault`: `raise` (an error in this
job's step), `hang` (a step that never returns) or `exit` (the process goes), after `fault_after_tokens`.
`ignore_stop`: an engine that goes on after it was told to stop. Blank lines are skipped.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

from gateway_protocol.families import Family
from provider.engine.errors import ScriptError
from provider.toolcalls import split_special

_NUMBER: Final = (int, float)
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "match": (str,),
    "text": (str,),
    "finish_reason": (str,),
    "chars_per_token": (int,),
    "ms_per_token": _NUMBER,
    "prefill_ms": _NUMBER,
    "fault": (str,),
    "fault_after_tokens": (int,),
    "ignore_stop": (bool,),
}
_CHOICES: Final = {"finish_reason": ("stop", "length"), "fault": ("raise", "hang", "exit")}
_LEAST: Final[dict[str, float]] = {
    "chars_per_token": 1,
    "ms_per_token": 0,
    "prefill_ms": 0,
    "fault_after_tokens": 0,
}


@dataclass(frozen=True, slots=True)
class ScriptLine:
    text: str
    match: str | None = None
    finish_reason: Literal["stop", "length"] = "stop"
    chars_per_token: int = 4
    ms_per_token: float = 0.0
    prefill_ms: float = 0.0
    fault: Literal["raise", "hang", "exit"] | None = None
    fault_after_tokens: int = 0
    ignore_stop: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedTokens:
    """A line's text as tokens, column by column."""

    texts: tuple[str, ...]
    ids: tuple[int, ...]


def load_script(path: Path) -> tuple[ScriptLine, ...]:
    """Read and check the whole file. Raises `ScriptError` naming the line."""
    try:
        raw = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(path, None, f"can't be read: {error}") from None
    # Not splitlines(): a JSON string may hold U+2028 unescaped.
    lines = [
        _parse_line(path, number, line) for number, line in enumerate(raw.split("\n"), 1) if line.strip()
    ]
    if not lines:
        raise ScriptError(path, None, "holds no line; one answer a line is needed")
    return tuple(lines)


def answer_for(script: Sequence[ScriptLine], last_text: str) -> ScriptLine | None:
    """The first line that matches; `None` when none does."""
    return next((line for line in script if line.match is None or line.match in last_text), None)


def tokenize(line: ScriptLine, family: Family) -> ScriptedTokens:
    """Cut a line into tokens; a spelled special token of the family is one token with its ID."""
    texts: list[str] = []
    ids: list[int] = []
    size = line.chars_per_token
    for text, token_id in split_special(family, line.text):
        if token_id is not None:
            texts.append(text)
            ids.append(token_id)
            continue
        for start in range(0, len(text), size):
            piece = text[start : start + size]
            texts.append(piece)
            ids.append(_plain_id(piece))
    return ScriptedTokens(tuple(texts), tuple(ids))


def _plain_id(piece: str) -> int:
    # Any stable number will do that no family uses for a special token (the lowest is above 100,000).
    return zlib.crc32(piece.encode()) % 100_000


def _parse_line(path: Path, number: int, raw: str) -> ScriptLine:
    try:
        fields = json.loads(raw)
    except ValueError as error:
        raise ScriptError(path, number, f"is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ScriptError(path, number, "must be a JSON object")
    present = {key: value for key, value in fields.items() if value is not None}
    for key, value in present.items():
        _check_field(path, number, key, value)
    if "text" not in present:
        raise ScriptError(path, number, '"text" is missing')
    return ScriptLine(**present)


def _check_field(path: Path, number: int, key: str, value: Any) -> None:
    kinds = _FIELDS.get(key)
    if kinds is None:
        raise ScriptError(path, number, f'unknown key "{key}" (known: {", ".join(_FIELDS)})')
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ScriptError(path, number, f'"{key}" has the wrong type')
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ScriptError(path, number, f'"{key}" must be one of {", ".join(_CHOICES[key])}')
    if key in _LEAST and not _LEAST[key] <= cast(float, value) <= 1e9:
        raise ScriptError(path, number, f'"{key}" must be at least {_LEAST[key]}')
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ScriptError(path, number, f'"{key}" holds half a surrogate pair') from None
