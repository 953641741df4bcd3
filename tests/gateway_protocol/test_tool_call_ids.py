"""IDs: minted ones have the accepted form, foreign ones are rewritten the same way everywhere."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_protocol.tool_call_ids import mint, rewrite


def test_minted_ids_are_fresh_and_accepted() -> None:
    minted = {mint() for _ in range(1000)}
    assert len(minted) == 1000
    for one in minted:
        assert re.fullmatch(r"call_[0-9a-f]{32}", one)
        assert rewrite(one) == one


@pytest.mark.parametrize("kept", ["call_" + "a" * 16, "call_" + "Z9" * 32, "call_0123456789abcdefABCDEF"])
def test_accepted_ids_are_kept(kept: str) -> None:
    assert rewrite(kept) == kept


@pytest.mark.parametrize(
    ("foreign", "rewritten"),
    [
        ("x", "call_2d711642b726b04401627ca9fbac32f5"),
        ("pyd_ai_" + "5f" * 16, "call_453d3dbd40447c27e079564319c33e3e"),
        ("call_1796037235935_oqcrho1", "call_011848ac8ffaab230a5a38002da62530"),
        ("ключ-🔑", "call_817281acd7012441f865e3ae0c0535f3"),
    ],
)
def test_foreign_ids_golden(foreign: str, rewritten: str) -> None:
    assert rewrite(foreign) == rewritten


@pytest.mark.parametrize(
    "foreign",
    [
        "call_" + "a" * 15,
        "call_" + "a" * 65,
        "call_" + "a" * 16 + "\n",
        "call_" + "é" * 16,
        "call_" + "a" * 16 + "-",
        "CALL_" + "a" * 16,
        "call_٣" + "a" * 16,
        "0123456789abcdef",
    ],
)
def test_what_is_nearly_accepted_is_rewritten(foreign: str) -> None:
    assert rewrite(foreign) == "call_" + hashlib.sha256(foreign.encode()).hexdigest()[:32]


@given(st.text(min_size=1))
def test_rewriting_twice_is_rewriting_once(call_id: str) -> None:
    once = rewrite(call_id)
    assert re.fullmatch(r"call_[A-Za-z0-9]{16,64}", once)
    assert rewrite(once) == once
