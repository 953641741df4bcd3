"""docs/receipts.md: its six lines verify a receipt, and what it says of the forms is what the code does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway_protocol.messages import Delta
from gateway_protocol.receipts import CHAIN_START, Difference, Receipt, ReceiptUsage, chain_link

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "receipts.md").read_text(encoding="utf-8")
GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/gateway_protocol/golden/receipt.json").read_text())


def run_the_six_lines(receipt: str) -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(code.splitlines()) == 6
    names: dict[str, Any] = {"base64": base64, "json": json, "Ed25519PublicKey": Ed25519PublicKey}
    names |= {"receipt": receipt, "jwks": GOLDEN["jwks"]}
    exec(code, names)
    return names["claims"]


def test_the_six_lines_verify_a_receipt() -> None:
    assert run_the_six_lines(GOLDEN["token"]) == json.loads(GOLDEN["payload"])


def test_the_six_lines_refuse_a_changed_one() -> None:
    head, payload, signature = GOLDEN["token"].split(".")
    with pytest.raises(InvalidSignature):
        run_the_six_lines(f"{head}.{payload[:-2]}AA.{signature}")


def test_every_claim_and_every_difference_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE[PAGE.index("| Member |") :], re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= set(Receipt.model_fields)
    assert all(f"`{name}`" in PAGE for name in ReceiptUsage.model_fields)
    named = set(Difference) - {Difference.KEY}
    assert all(f"`{difference}`" in PAGE for difference in named)


def test_the_chain_is_what_the_page_says() -> None:
    delta = {
        "role": "assistant",
        "content": "é",
        "reasoning_content": "",
        "tool_calls": [{"index": 10, "id": "call_1", "function": {"name": "f", "arguments": "{"}}],
    }
    texts = [(1, "assistant"), (2, "é"), (3, ""), (4, "10"), (5, "call_1"), (6, "f"), (7, "{")]
    data = hashlib.sha256(b"malibu.chain.v1").digest() + (3).to_bytes(8, "big")
    for tag, text in texts:
        raw = text.encode()
        data += bytes([tag]) + len(raw).to_bytes(8, "big") + raw
    assert chain_link(CHAIN_START, 3, Delta.model_validate(delta)) == hashlib.sha256(data).digest()
