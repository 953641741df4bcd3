"""Models from Hugging Face, against a stand-in for the hub: the installed command, its real cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.fake_hub import REPOSITORY, FakeHub, serving

# Reads what the library makes of a pulled model, in a process whose cache is the test's.
SPEC = (
    "import json, sys; from pathlib import Path; from provider.models.library import ModelLibrary\n"
    "library = ModelLibrary(Path('/nowhere')); model = library.identify(sys.argv[1])\n"
    "folder = library.find(model)\n"
    "spec = library.spec(model, folder) if folder else None\n"
    "print(json.dumps(spec and [spec.family, spec.context_length, spec.revision, spec.weights_sha256]))"
)


def safetensors(value: int, size: int = 100_000) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes([value]) * size


def files(value: int = 1) -> dict[str, bytes]:
    return {
        "config.json": b'{"max_position_embeddings": 2048}',
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(value),
        "README.md": b"read me",
        "modeling_evil.py": b"raise SystemExit",
    }


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub()) as hub:
        yield hub


class User:
    """One user's cache and environment."""

    def __init__(self, home: Path, hub: FakeHub) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "MALIBU_"))}
        self.environment = kept | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(home / "hf"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "HF_HUB_DISABLE_XET": "1",
            "MALIBU_PROVIDER_HOME": str(home / "state"),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("malibu-provider")), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def spec(self) -> list[object] | None:
        done = subprocess.run(
            [sys.executable, "-c", SPEC, REPOSITORY],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found: list[object] | None = json.loads(done.stdout)
        return found


@pytest.fixture
def user(tmp_path: Path, hub: FakeHub) -> User:
    return User(tmp_path, hub)


def test_a_model_is_pulled_once_and_stays_at_its_revision(user: User, hub: FakeHub) -> None:
    assert user.spec() is None
    first = hub.commit(files())
    pulled = user.run("models", "pull", REPOSITORY)
    assert pulled.returncode == 0, pulled.stderr
    assert sorted(hub.fetched()) == ["config.json", "model.safetensors", "tokenizer.json"]
    weights = hashlib.sha256(files()["model.safetensors"]).hexdigest()
    assert user.spec() == ["qwen", 2048, first, weights]

    # A newer commit is nobody's business until its owner pulls again.
    second = hub.commit(files(2))
    asked = len(hub.requests)
    assert user.spec() == ["qwen", 2048, first, weights]
    assert len(hub.requests) == asked
    assert user.run("models", "pull", REPOSITORY).returncode == 0
    found = user.spec()
    assert found is not None
    assert found[2] == second

    listed = json.loads(user.run("models", "list", "--json").stdout)["models"]
    assert [model["id"] for model in listed if model["installed"]] == [REPOSITORY]
    removed = user.run("models", "remove", REPOSITORY)
    assert removed.returncode == 0
    assert user.spec() is None


def test_a_revision_can_be_pinned(user: User, hub: FakeHub, tmp_path: Path) -> None:
    first = hub.commit(files())
    hub.commit(files(2))
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "config.toml").write_text(f'[model."{REPOSITORY}"]\nrevision = "{first}"\n')
    assert user.run("models", "pull", REPOSITORY).returncode == 0
    assert all(first in path for _, path, _ in hub.requests if "/resolve/" in path)


def test_a_cut_download_is_resumed(user: User, hub: FakeHub) -> None:
    # The client writes to disk in pieces of 10 MiB.
    hub.commit({**files(), "model.safetensors": safetensors(1, 25_000_000)})
    hub.cut_after = 22_000_000
    user.run("models", "pull", REPOSITORY)
    again = user.run("models", "pull", REPOSITORY)
    assert again.returncode == 0, again.stderr
    ranges = [
        wanted for method, path, wanted in hub.requests if method == "GET" and path.endswith(".safetensors")
    ]
    assert any(wanted and not wanted.startswith("bytes=0-") for wanted in ranges), ranges
    assert user.spec() is not None


def test_a_damaged_download_is_found_and_fetched_again(user: User, hub: FakeHub) -> None:
    hub.commit(files())
    hub.flip_once = True
    damaged = user.run("models", "pull", REPOSITORY)
    assert damaged.returncode == 1
    assert "model.safetensors arrived damaged (SHA-256); pull it again" in damaged.stderr
    assert user.spec() is None
    assert user.run("models", "pull", REPOSITORY).returncode == 0
    assert user.spec() is not None


def test_a_model_that_the_disk_cannot_hold_is_not_begun(user: User, hub: FakeHub) -> None:
    hub.commit(files())
    hub.claimed_size = 10**15
    refused = user.run("models", "pull", REPOSITORY)
    assert refused.returncode == 1
    assert "1000001.0 GB are needed" in refused.stderr
    assert hub.fetched() == []


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda hub: None, "can't be fetched from Hugging Face"),
        (lambda hub: hub.commit({**files(), "model.safetensors": safetensors(1)[:-1]}), "is damaged"),
        (lambda hub: hub.commit({"config.json": b"{}", "tokenizer.json": b"{}"}), "there are no weights"),
    ],
)
def test_what_goes_wrong_is_one_line(user: User, hub: FakeHub, break_it: object, words: str) -> None:
    assert callable(break_it)
    break_it(hub)
    pulled = user.run("models", "pull", REPOSITORY)
    assert pulled.returncode == 1
    assert words in pulled.stderr.splitlines()[-1]
    assert "Traceback" not in pulled.stderr
    assert user.spec() is None


def test_an_unreachable_hub_is_one_line(user: User) -> None:
    user.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    pulled = user.run("models", "pull", REPOSITORY)
    assert pulled.returncode == 1
    assert "can't be fetched from Hugging Face" in pulled.stderr
    assert "Traceback" not in pulled.stderr
