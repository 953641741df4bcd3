"""docs/protocol.md names every message with its members, every code and every time as the code has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from gateway_protocol import limits
from gateway_protocol.messages import (
    SUBPROTOCOL,
    CloseCode,
    FromGateway,
    FromProvider,
    NackCode,
    NotRoutableReason,
    ProviderState,
    RefusedCode,
)
from gateway_protocol.signing import REGISTER_DOMAIN, ROTATE_DOMAIN

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
GATEWAY: tuple[type[BaseModel], ...] = get_args(get_args(FromGateway)[0])
PROVIDER: tuple[type[BaseModel], ...] = get_args(get_args(FromProvider)[0])


def kind(model: type[BaseModel]) -> str:
    return str(model.model_fields["type"].default)


@pytest.mark.parametrize(
    "model", [*GATEWAY, *(model for model in PROVIDER if model not in GATEWAY)], ids=kind
)
def test_each_message_stands_there_with_its_members_and_direction(model: type[BaseModel]) -> None:
    (row,) = re.findall(rf"^\| (\S+) \| `{kind(model)}` \| (.*) \|$", PAGE, re.M)
    direction, members = row
    both = model in GATEWAY and model in PROVIDER
    assert direction == ("both" if both else "G→P" if model in GATEWAY else "P→G")
    told = re.sub(r"\(.*?\)", "", members)
    names = re.findall(r"(\[?)`(\w+)`", told)
    assert [name for _, name in names] == [name for name in model.model_fields if name != "type"]
    for bracket, name in names:
        field = model.model_fields[name]
        optional = not field.is_required() and field.default is None
        assert bool(bracket) == optional, name


@pytest.mark.parametrize("codes", [NackCode, NotRoutableReason, ProviderState, RefusedCode])
def test_closed_sets_are_complete(codes: type) -> None:
    assert [code for code in codes if f"`{code}`" not in PAGE] == []  # type: ignore[attr-defined]


def test_close_codes_and_names_are_the_codes() -> None:
    codes = [value for name, value in vars(CloseCode).items() if name.isupper()]
    assert [code for code in codes if str(code) not in PAGE] == []
    assert all(f"`{name}`" in PAGE for name in (SUBPROTOCOL, REGISTER_DOMAIN, ROTATE_DOMAIN))


def test_sizes_and_times_are_the_codes() -> None:
    mib, kib = limits.MIB, limits.KIB
    assert f"{limits.FRAME_FROM_GATEWAY_BYTES // mib} MiB from the gateway" in PAGE
    assert f"{limits.FRAME_FROM_PROVIDER_BYTES // mib} MiB from the provider" in PAGE
    assert f"more than {limits.DELTA_TEXT_BYTES // kib} KiB of text" in PAGE
    assert f"at most {limits.OUTBOX_JOB_BYTES // mib} MiB for a job" in PAGE
    assert f"{limits.OUTBOX_TOTAL_BYTES // mib} MiB in all" in PAGE
    assert f"not read more than {limits.UNREAD_JOB_BYTES // mib} MiB" in PAGE
    for time_ms in (limits.REDISPATCH_WAIT_MS, limits.RESUME_WINDOW_MS, limits.JOB_DEADLINE_MS):
        assert f"| {time_ms:,} |" in PAGE
    budget = f"{limits.FIRST_CONTENT_BASE_MS:,} + {limits.FIRST_CONTENT_PER_TOKEN_MS} for each"
    assert budget in PAGE
    assert f"every {limits.HEARTBEAT_INTERVAL_MS // 1000} s" in PAGE
    assert f"frame for {limits.LINK_DEAD_AFTER_MS // 1000} s" in PAGE
    assert f"within {limits.HALF_OPEN_NOTICED_MS // 1000} s" in PAGE
    assert f"for {limits.SEND_TIMEOUT_MS // 1000} s ends it" in PAGE
    assert limits.DISPATCH_ATTEMPTS == 3
