"""Is a receipt about exactly this answer? Checked before a buyer sees it: pure.

The buyer trusts the gateway for delivery and the receipt for authorship, so a receipt that doesn't fit is a
fault of the provider's, not something to pass on (docs/protocol.md, "Receipts").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway_protocol.answer import Answer
from gateway_protocol.messages import FinishReason, Usage
from gateway_protocol.receipts import Receipt, ReceiptUsage, Terminal, response_sha256, verify_receipt
from gateway_protocol.signing import SigningError, jwks


class ReceiptMismatch(Exception):
    """`field`: the first claim that differs, or `signature`."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True, slots=True)
class Expected:
    """What this gateway itself knows of the attempt.

    `chain`, `chunks`: of what arrived. `terminals`: the endings that fit the frame. `usage`: what the frame
    says, `None` where it says nothing.
    """

    job_id: str
    attempt: int
    provider_id: str
    model: str
    revision: str | None
    contract: str
    request_sha256: str
    chain: str
    chunks: int
    terminals: frozenset[Terminal]
    answer: Answer
    finish_reason: FinishReason | None
    usage: Usage | None


def check_receipt(token: str, public_keys: Sequence[str], expected: Expected) -> Receipt:
    """The receipt's claims if all of them hold. Raises `ReceiptMismatch`."""
    try:
        receipt = verify_receipt(token, jwks(public_keys))
    except SigningError:
        raise ReceiptMismatch("signature") from None
    for field in ("job_id", "attempt", "provider_id", "model", "revision", "contract", "request_sha256"):
        if getattr(receipt, field) != getattr(expected, field):
            raise ReceiptMismatch(field)
    if receipt.terminal not in expected.terminals:
        raise ReceiptMismatch("terminal")
    if receipt.chain != expected.chain or receipt.chunks != expected.chunks:
        raise ReceiptMismatch("chain")
    if receipt.finish_reason != expected.finish_reason:
        raise ReceiptMismatch("finish_reason")
    if receipt.response_sha256 != response_sha256(expected.answer):
        raise ReceiptMismatch("response_sha256")
    if expected.usage is not None and receipt.usage != ReceiptUsage.of(expected.usage):
        raise ReceiptMismatch("usage")
    return receipt
