"""Tool-call IDs: made fresh for each call, and rewritten where a history brings foreign ones.

Agents carry sessions over from other servers, so a history may hold any ID (`pyd_ai_…`, `chatcmpl-tool-…`).
Each becomes one of ours by a pure function of itself: the call and its result, the gateway and the
provider, and anyone who verifies a receipt come to the same ID (docs/contract.md, "History").
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

_PREFIX: Final = "call_"
_ACCEPTED: Final = re.compile(r"call_[A-Za-z0-9]{16,64}")


def mint() -> str:
    """A fresh ID: `call_` and 32 lower-case hex digits."""
    return _PREFIX + secrets.token_hex(16)


def rewrite(call_id: str) -> str:
    """`call_id` itself where it has the accepted form, else `call_` + 32 hex digits of its SHA-256.

    `call_id` is not empty; an empty one is refused before (`invalid_tool_call_id`). Rewriting twice is
    rewriting once. A lone surrogate, which no JSON body can bring this far, is hashed as its three bytes.
    """
    if _ACCEPTED.fullmatch(call_id):
        return call_id
    return _PREFIX + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
