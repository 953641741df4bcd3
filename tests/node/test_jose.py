"""npm's jose verifies our receipts as they are: golden bytes, and answers of a running stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import hermes
from tests.fakes.stack import QWEN, Stack
from tests.node import installed

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "gateway_protocol" / "golden" / "receipt.json").read_text()
)
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def changed(token: str) -> str:
    """The same token, one character of its payload another."""
    head, payload, signature = token.split(".")
    middle = len(payload) // 2
    other = "A" if payload[middle] != "A" else "B"
    return ".".join((head, payload[:middle] + other + payload[middle + 1 :], signature))


async def test_the_golden_receipt(tmp_path: Path) -> None:
    tokens = [GOLDEN["token"], changed(GOLDEN["token"])]
    good, bad = await installed.run(
        tmp_path, "verify_receipt.mjs", stdin={"jwks": GOLDEN["jwks"], "tokens": tokens}
    )
    assert good["payload"] == GOLDEN["payload"]
    assert (good["header"]["alg"], good["header"]["typ"]) == ("Ed25519", "malibu-receipt+jwt")
    assert bad == {"code": "ERR_JWS_SIGNATURE_VERIFICATION_FAILED"}


async def test_receipts_of_running_answers(tmp_path: Path) -> None:
    lines = [{"match": "call", "text": hermes("look_up", {"a": "é"})}, {"text": "Hello, Zürich!"}]
    async with Stack(tmp_path, *lines, models=(QWEN,)) as it:
        tokens = []
        for ask in ("call", "text"):
            asked = {"model": QWEN.id, "messages": [{"role": "user", "content": ask}], "tools": TOOLS}
            _, answer = await it.post(asked)
            tokens.append(answer["malibu"]["receipt"])
            stream = await it.stream(asked)
            tokens += [chunk["malibu"]["receipt"] for chunk in stream.chunks if "malibu" in chunk]
        async with it.http.get(f"{it.gateway.url}/v1/providers/keys") as response:
            jwks = await response.json()
    assert len(tokens) == 4
    verified = await installed.run(
        tmp_path, "verify_receipt.mjs", stdin={"jwks": jwks, "tokens": [*tokens, changed(tokens[0])]}
    )
    for token in verified[:4]:
        claims = json.loads(token["payload"])
        assert (claims["model"], claims["terminal"]) == (QWEN.id, "completed")
        assert token["header"]["kid"] == jwks["keys"][0]["kid"]
    assert "code" in verified[4]
    # With another provider's key it is nobody's.
    [unknown] = await installed.run(
        tmp_path, "verify_receipt.mjs", stdin={"jwks": GOLDEN["jwks"], "tokens": tokens[:1]}
    )
    assert unknown == {"code": "ERR_JWKS_NO_MATCHING_KEY"}
