from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from provider.errors import ProviderError
from provider.system.paths import SOCKET_PATH_BYTES, resolve_paths

HOME = Path("/home/me")


def test_macos_uses_library_folders() -> None:
    paths = resolve_paths({"XDG_STATE_HOME": "/ignored"}, platform="darwin", home=HOME)
    assert paths.state == HOME / "Library/Application Support/malibu-provider"
    assert paths.config_file == paths.state / "config.toml"
    assert paths.cache == HOME / "Library/Caches/malibu-provider"
    assert paths.logs == HOME / "Library/Logs/malibu-provider"


def test_linux_uses_xdg_folders_and_ignores_relative_ones() -> None:
    paths = resolve_paths({"XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "cache"}, platform="linux", home=HOME)
    assert paths.state == Path("/s/malibu-provider")
    assert paths.config_file == HOME / ".config/malibu-provider/config.toml"
    assert paths.models == HOME / ".cache/malibu-provider/models"
    assert paths.logs == paths.state / "logs"


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_one_override_moves_all_but_the_models(platform: str) -> None:
    paths = resolve_paths({"MALIBU_PROVIDER_HOME": "/x"}, platform=platform, home=HOME)
    assert (paths.state, paths.config_file, paths.logs) == (
        Path("/x"),
        Path("/x/config.toml"),
        Path("/x/logs"),
    )
    assert HOME in paths.cache.parents


def test_another_platform_is_refused_plainly() -> None:
    with pytest.raises(ProviderError, match=r"runs on macOS .* and Linux, not on win32"):
        resolve_paths({}, platform="win32", home=HOME)


def test_the_socket_is_in_the_state_folder_and_short_wherever_that_is(tmp_path: Path) -> None:
    short = resolve_paths({"MALIBU_PROVIDER_HOME": "/x"}, platform="linux", home=HOME)
    assert short.control_socket == Path("/x/control.sock")
    sockets = set()
    for name in ("a", "b"):
        deep = tmp_path / (name * 120)
        paths = resolve_paths({"MALIBU_PROVIDER_HOME": str(deep)}, platform="linux", home=HOME)
        assert len(os.fsencode(paths.control_socket)) <= SOCKET_PATH_BYTES
        sockets.add(paths.control_socket)
    assert len(sockets) == 2


def test_folders_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    paths = resolve_paths({"MALIBU_PROVIDER_HOME": str(tmp_path / "new")}, platform=sys.platform)
    paths.create()
    assert paths.state.stat().st_mode & 0o777 == 0o700
    paths.create()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    paths = resolve_paths({"MALIBU_PROVIDER_HOME": str(shared)}, platform=sys.platform)
    with pytest.raises(ProviderError, match="others may write to it"):
        paths.create()


def test_a_folder_that_can_t_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = resolve_paths({"MALIBU_PROVIDER_HOME": str(tmp_path / "file" / "x")}, platform=sys.platform)
    with pytest.raises(ProviderError, match="can't make the folder"):
        paths.create()
