"""The control socket: a command that fails is told in words at the other end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.control import ask
from provider.errors import ProviderError, UnknownStateError
from provider.status.control import ControlServer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            "the daemon can't do `pause`: No space left on device",
        ),
        (ProviderError("the key is damaged"), "the daemon can't do `pause`: the key is damaged"),
    ],
)
async def test_what_kept_a_command_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str
) -> None:
    async def fail(body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise fault

    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path))
    server = ControlServer(tmp_path / "control.sock", status=dict, commands={"pause": fail})
    await server.start()
    try:
        with pytest.raises(UnknownStateError) as told:
            await asyncio.to_thread(ask, "POST", "pause", seconds=60.0)
    finally:
        await server.aclose()
    assert str(told.value) == words
