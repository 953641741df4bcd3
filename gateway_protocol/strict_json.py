"""JSON as JSON.parse takes it, and no more: what both ends can read, hash and render the same way.

Python's parser takes `NaN`, lone surrogates and numbers beyond a double; others don't, and RFC 8785 has no
form for them. Duplicate keys are tolerated, the last one wins, as in JSON.parse. Integers stay exact.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from gateway_protocol.limits import REQUEST_DEPTH

# 309 digits are the most that a finite double can need; longer ones would also cost quadratic time.
_DOUBLE_DIGITS: Final = 309
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    """The text isn't JSON, or holds what JSON.parse and RFC 8785 can't carry. Never quotes the text."""


def loads(data: bytes | str, *, depth: int = REQUEST_DEPTH) -> Any:
    """The value that `data` (UTF-8, a byte order mark is ignored) holds, nested at most `depth` levels.

    The outermost array or object is level 1. Raises `JsonError`. Linear in the size of `data`.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_int)
    except JsonError:
        raise
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise JsonError(f"nested deeper than {depth} levels") from None
    if not _within_depth(value, depth):
        raise JsonError(f"nested deeper than {depth} levels")
    if _SURROGATE_ESCAPE.search(text) and _has_lone_surrogate(value):
        raise JsonError("a string holds a lone surrogate")
    return value


def is_object(text: str, *, depth: int) -> bool:
    """Whether `text` is one JSON object (RFC 8259), nested at most `depth` levels, no name twice in any.

    Numbers of any size and lone surrogates pass: nothing is computed with them. Linear in the size of `text`.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=str, parse_float=str
        )
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _within_depth(value, depth)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JsonError("a name stands twice in one object")
    return found


def _constant(name: str) -> Any:
    raise JsonError(f"{name} is not JSON")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonError("a number is beyond the range of a double")
    return number


def _int(text: str) -> int:
    if len(text) < _DOUBLE_DIGITS:
        return int(text)
    _float(text)
    return int(text)


def _within_depth(value: Any, depth: int) -> bool:
    """Walks level by level instead of recursing, so that no nesting can exhaust the stack."""
    layer = [value] if isinstance(value, dict | list) else []
    for _ in range(depth):
        if not layer:
            return True
        layer = [
            child
            for parent in layer
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return not layer


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
