"""Hashes of a conversation's prefixes, for sending its next turn to the provider that has it warm. Pure.

Agents repeat each request exactly and only append messages, so the hash over (tenant, model, tools, first n
messages) of one turn is among those of the next. Only the gateway keeps them, in memory.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from gateway_protocol.openai_types import CheckedRequest

_MOST: Final = 16


def prefix_hashes(request: CheckedRequest, tenant: str | None) -> tuple[bytes, ...]:
    """Hashes of the longest prefixes that end in a message, longest first, at most 16; 16 bytes each."""
    head = [tenant, request.model, request.body.get("tools")]
    state = hashlib.blake2b(_bytes(head), digest_size=16)
    found: list[bytes] = []
    for message in request.body["messages"]:
        state.update(_bytes(message))
        found.append(state.digest())
    return tuple(found[: -_MOST - 1 : -1])


def _bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
