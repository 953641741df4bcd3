"""The form of a request that a receipt commits to, and its bytes (docs/protocol.md, "Receipts").

Anyone who holds the buyer's body can make the same bytes: three changes, then RFC 8785. The golden files in
`tests/gateway_protocol/golden` hold them; a change here that moves a byte breaks every receipt ever given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import rfc8785

from gateway_protocol.limits import SAFE_INTEGER
from gateway_protocol.tool_call_ids import rewrite

_REMOVED: Final = frozenset({"stream", "stream_options", "user", "metadata"})
_LEAST_PLAIN: Final = 1e-4
_LEAST_EXPONENT: Final = 1e16
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode


def canonical_request(body: dict[str, Any]) -> dict[str, Any]:
    """`body` after three changes and no other; `body` itself is left as it is.

    1. `stream`, `stream_options`, `user` and `metadata` are removed.
    2. Members that are `null` are removed at the top level and in each message, not deeper.
    3. Foreign tool-call IDs are rewritten: in each message `tool_call_id` and `tool_calls[].id`.

    No default is filled in, no content part joined, no unknown field dropped. Works on any JSON object, so
    that a receipt can be compared with a body that was never valid. Doing it twice is doing it once.
    """
    kept = {name: value for name, value in body.items() if value is not None and name not in _REMOVED}
    messages = kept.get("messages")
    if isinstance(messages, list):
        kept["messages"] = [_message(item) if isinstance(item, dict) else item for item in messages]
    return kept


def _message(message: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in message.items() if value is not None}
    if "tool_call_id" in kept:
        kept["tool_call_id"] = _rewritten(kept["tool_call_id"])
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [
            {**call, "id": _rewritten(call["id"])} if isinstance(call, dict) and "id" in call else call
            for call in calls
        ]
    return kept


def _rewritten(call_id: Any) -> Any:
    return rewrite(call_id) if isinstance(call_id, str) and call_id else call_id


def canonical_bytes(value: Any) -> bytes:
    """`value` (JSON, nested as deep as a checked body at most) in the form of RFC 8785.

    An integer beyond 2^53 takes the double that JSON.parse gives it. Raises `ValueError` on what has no such
    form: lone surrogates, numbers beyond a double; `strict_json.loads` has refused them before.
    """
    pieces: list[str] = []
    _write(value, pieces.append)
    return "".join(pieces).encode()


def _write(value: Any, write: Callable[[str], object]) -> None:
    """`rfc8785` writes the numbers, where the rules are hard; the rest is json's C encoder, which escapes
    strings the same way without a Python call for each character (milliseconds in a prompt full of code).
    """
    if isinstance(value, str):
        write(_quoted(value))
    elif isinstance(value, dict):
        opener = "{"
        for name in sorted(value, key=_utf16):
            write(f"{opener}{_quoted(name)}:")
            _write(value[name], write)
            opener = ","
        write("}" if value else "{}")
    elif isinstance(value, list | tuple):
        opener = "["
        for member in value:
            write(opener)
            _write(member, write)
            opener = ","
        write("]" if value else "[]")
    else:
        write(_scalar(value))


def _scalar(value: Any) -> str:
    if type(value) is int and -SAFE_INTEGER <= value <= SAFE_INTEGER:
        return str(value)
    if type(value) is float and _LEAST_PLAIN <= abs(value) < _LEAST_EXPONENT:
        # Python and ECMAScript write the same shortest digits here; they differ in where exponents begin.
        return repr(value).removesuffix(".0")
    if isinstance(value, int) and not -SAFE_INTEGER <= value <= SAFE_INTEGER:
        try:
            value = float(value)
        except OverflowError:
            raise ValueError("a number is beyond the range of a double") from None
    return rfc8785.dumps(value).decode()


def _utf16(name: str) -> bytes:
    """Members are sorted by UTF-16 code units (RFC 8785, 3.2.3), which differs from Python's order."""
    return name.encode("utf-16-be")
