from __future__ import annotations

from pathlib import Path

import pytest

from provider.policy.pause import FILE_NAME, OwnerPause, PauseFile


def test_the_owners_word_outlives_the_daemon(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert PauseFile(state).read() is None
    PauseFile(state).write(OwnerPause(100.0, None))
    assert PauseFile(state).read() == OwnerPause(100.0, None)
    PauseFile(state).write(OwnerPause(100.0, 160.0))
    assert PauseFile(state).read() == OwnerPause(100.0, 160.0)
    PauseFile(state).remove()
    PauseFile(state).remove()
    assert PauseFile(state).read() is None
    assert [file.name for file in state.iterdir()] == []


def test_a_pause_may_end_by_itself() -> None:
    assert OwnerPause(0.0, 60.0).holds(59.9)
    assert not OwnerPause(0.0, 60.0).holds(60.0)
    assert OwnerPause(0.0, None).holds(1e12)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"since": 1}', '{"since": "x", "until": null}', "\xff"])
def test_a_damaged_file_is_a_pause(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode("latin-1"))
    assert PauseFile(tmp_path).read() == OwnerPause(None, None)
