"""Receipts: signed statements of what a provider was asked and what it answered (docs/receipts.md).

`forms`: hashes, chain, payload and tokens. `recorded`: what a buyer kept. `verification`: comparing the two.
"""

from gateway_protocol.receipts.forms import (
    CHAIN_START,
    RECEIPT_TYPE,
    STATUS_TYPE,
    Receipt,
    ReceiptUsage,
    Terminal,
    chain_link,
    make_receipt,
    make_status,
    read_receipt,
    receipt_bytes,
    request_sha256,
    response_sha256,
    verify_receipt,
    verify_status,
)
from gateway_protocol.receipts.recorded import RecordedResponse, UnreadableRecord, read_response
from gateway_protocol.receipts.verification import (
    Difference,
    Finding,
    Verdict,
    Verification,
    verify,
)

__all__ = [
    "CHAIN_START",
    "RECEIPT_TYPE",
    "STATUS_TYPE",
    "Difference",
    "Finding",
    "Receipt",
    "ReceiptUsage",
    "RecordedResponse",
    "Terminal",
    "UnreadableRecord",
    "Verdict",
    "Verification",
    "chain_link",
    "make_receipt",
    "make_status",
    "read_receipt",
    "read_response",
    "receipt_bytes",
    "request_sha256",
    "response_sha256",
    "verify",
    "verify_receipt",
    "verify_status",
]
