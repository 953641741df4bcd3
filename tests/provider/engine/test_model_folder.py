"""Model folders that can't be served: each named, at start where it can be seen, in `status` where not."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from provider.engine.errors import EngineStartError
from provider.engine.model_folder import check_folder, weight_bytes
from provider.engine.process import EngineProcess
from provider.engine.spec import EngineSettings, ModelSpec

FOLDER = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen3"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "model"))


def settings(folder: Path) -> EngineSettings:
    return EngineSettings(models=(ModelSpec("tiny", Family.QWEN, 1024, path=folder),), slots=2)


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def garbage_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>404</html>" * 1000)


def header_of_another_kind(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")


def missing_part(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def config_of_another_kind(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def nothing(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (no_weights, "there are no weights"),
        (cut_weights, "its size is not what its header says"),
        (empty_weights, "cut short"),
        (garbage_weights, "header makes no sense"),
        (header_of_another_kind, "header makes no sense"),
        (missing_part, "model-00001-of-00002.safetensors is missing"),
        (no_config, "no config.json"),
        (broken_config, "config.json can't be read"),
        (config_of_another_kind, "is not a JSON object"),
        (no_tokenizer, "no tokenizer.json"),
        (nothing, "there is no folder"),
    ],
)
@pytest.mark.asyncio
async def test_what_can_be_seen_stops_the_start(
    folder: Path, damage: Callable[[Path], None], says: str
) -> None:
    check_folder("tiny", folder)
    assert weight_bytes(folder) > 1_000_000
    damage(folder)
    engine = EngineProcess(settings(folder))
    with pytest.raises(EngineStartError, match=says) as caught:
        await engine.start()
    assert caught.value.exit_code == 1
    assert "pull" in str(caught.value) or "folder" in str(caught.value)
    await engine.aclose()


def foreign_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "unheard_of"}))


def other_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 5}))


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 1}')


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (foreign_architecture, "can't be loaded"),
        (other_shape, "can't be loaded"),
        (broken_tokenizer, "tokenizer can't be loaded"),
    ],
)
@pytest.mark.asyncio
async def test_what_only_loading_shows_is_told_by_wait_ready_and_status(
    folder: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(folder)
    engine = EngineProcess(settings(folder))
    await engine.start()
    try:
        with pytest.raises(EngineStartError, match=says):
            await engine.wait_ready()
        status = engine.status()
        assert not status.ready
        assert says in (status.detail or "")
        assert status.models == {"tiny": ModelState.FAILED}
        assert status.restarts == 0
    finally:
        await engine.aclose()
