"""What a provider says it was asked and what it answered, signed (docs/receipts.md).

    request ─canonical form─▶ request_sha256 ─┐
    chunks ──chain_link──▶ chain, chunks ─────┼─▶ Receipt ─RFC 8785, JWS─▶ token
    answer ─canonical form─▶ response_sha256 ─┘

All hashes are SHA-256 in lower-case hex. Every form here is fixed by golden bytes in the tests: a change that
moves one byte makes all earlier receipts unverifiable. Comparing is the part of `verification`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal

import rfc8785
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from gateway_protocol.answer import Answer
from gateway_protocol.canonical import canonical_bytes, canonical_request
from gateway_protocol.jws import make_jws, read_jws, verify_jws
from gateway_protocol.keys import MalformedToken, ProviderKey
from gateway_protocol.messages import Delta, FinishReason, Usage, Wire

RECEIPT_TYPE: Final = "malibu-receipt+jwt"
STATUS_TYPE: Final = "malibu-status+jwt"

CHAIN_START: Final = hashlib.sha256(b"malibu.chain.v1").digest()
_ROLE, _CONTENT, _REASONING, _INDEX, _CALL_ID, _NAME, _ARGUMENTS = (bytes([tag]) for tag in range(1, 8))


class Terminal(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ReceiptUsage(Wire):
    """The token counts that are signed; reasoning tokens are part of `completion_tokens`."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt

    @classmethod
    def of(cls, usage: Usage) -> ReceiptUsage:
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
        )


class Receipt(Wire):
    """The payload of a receipt. `chain`: the last link; `chunks`: their number; `revision`: the model's."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, protected_namespaces=())

    v: Literal[1] = 1
    job_id: str
    attempt: PositiveInt
    provider_id: str
    model: str
    revision: str | None = None
    request_sha256: str
    response_sha256: str
    chain: str
    chunks: NonNegativeInt
    terminal: Terminal
    finish_reason: FinishReason | None
    usage: ReceiptUsage
    contract: Literal["malibu", "strict"]
    issued_at_ms: NonNegativeInt


_RECEIPT: Final = TypeAdapter(Receipt)


# --- hashes --------------------------------------------------------------------------------------


def chain_link(previous: bytes, seq: int, delta: Delta) -> bytes:
    """The link of chunk `seq`: SHA-256(previous ‖ seq as 8 bytes ‖ each text of the delta).

    A text is a tag byte, the length of its UTF-8 as 8 bytes, its UTF-8; numbers are big-endian, in this
    order: 1 role, 2 content, 3 reasoning_content, then for each tool call 4 index (decimal digits), 5 id,
    6 function.name, 7 function.arguments. An absent text adds nothing, an empty one its tag and a zero.
    """
    parts = [previous, seq.to_bytes(8, "big")]
    if delta.role is not None:
        _add_text(parts, _ROLE, delta.role)
    if delta.content is not None:
        _add_text(parts, _CONTENT, delta.content)
    if delta.reasoning_content is not None:
        _add_text(parts, _REASONING, delta.reasoning_content)
    for call in delta.tool_calls or ():
        _add_text(parts, _INDEX, str(call.index))
        if call.id is not None:
            _add_text(parts, _CALL_ID, call.id)
        if call.function is not None and call.function.name is not None:
            _add_text(parts, _NAME, call.function.name)
        if call.function is not None and call.function.arguments is not None:
            _add_text(parts, _ARGUMENTS, call.function.arguments)
    return hashlib.sha256(b"".join(parts)).digest()


def _add_text(parts: list[bytes], tag: bytes, text: str) -> None:
    raw = text.encode()
    parts += (tag, len(raw).to_bytes(8, "big"), raw)


def request_sha256(body: dict[str, Any]) -> str:
    """Hash of the buyer's body in its canonical form; the body may be as sent or already normalised."""
    return hashlib.sha256(canonical_bytes(canonical_request(body))).hexdigest()


def response_sha256(answer: Answer) -> str:
    """Hash of what the buyer got: the RFC 8785 form of the answer's four members."""
    return hashlib.sha256(canonical_bytes(answer.as_dict())).hexdigest()


# --- tokens --------------------------------------------------------------------------------------


def receipt_bytes(receipt: Receipt) -> bytes:
    """The RFC 8785 form of a receipt: the payload that is signed."""
    return rfc8785.dumps(receipt.model_dump(mode="json"))


def make_receipt(key: ProviderKey, receipt: Receipt) -> str:
    """The receipt as a compact JWS."""
    return make_jws(key, RECEIPT_TYPE, receipt_bytes(receipt))


def read_receipt(token: str) -> tuple[str, Receipt]:
    """Key ID and claims of a receipt, *not verified*. Raises `MalformedToken`."""
    key_id, payload = read_jws(token, RECEIPT_TYPE)
    return key_id, _parse(payload)


def verify_receipt(token: str, keys: Mapping[str, Any]) -> Receipt:
    """The claims of a receipt signed by a key of the JWK Set. Raises `jws.verify_jws`'s errors."""
    return _parse(verify_jws(token, RECEIPT_TYPE, keys))


def _parse(payload: bytes) -> Receipt:
    try:
        return _RECEIPT.validate_json(payload)
    except ValidationError:
        raise MalformedToken("the payload is not a receipt of version 1") from None


def make_status(key: ProviderKey, snapshot: Mapping[str, Any]) -> str:
    """A status report as a compact JWS of the RFC 8785 form of `snapshot`."""
    return make_jws(key, STATUS_TYPE, rfc8785.dumps(dict(snapshot)))


def verify_status(token: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot of a status report signed by a key of the JWK Set."""
    payload = verify_jws(token, STATUS_TYPE, keys)
    try:
        snapshot = json.loads(payload)
    except (ValueError, RecursionError):
        snapshot = None
    if not isinstance(snapshot, dict):
        raise MalformedToken("the payload is not a JSON object")
    return snapshot
