"""A model folder on disk: is it whole, and what do its files say?

Nothing here loads weights. A folder that is cut short is named here, in milliseconds, instead of failing
minutes later in the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.engine.base import ThinkMarkers
from provider.errors import ModelError

INDEX_FILE = "model.safetensors.index.json"
# What this product writes beside a model it made: where it came from and the hash of its weights.
PROVENANCE_FILE = "malibu.json"
_LONGEST_HEADER = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What the files say. `context_length` in tokens; `weights_bytes`: on disk."""

    context_length: int | None
    think: ThinkMarkers | None
    weights_bytes: int
    revision: str | None
    weights_sha256: str | None


def read_folder(folder: Path) -> FolderFacts:
    """Check that the folder can be loaded and read its facts. Raises `ModelError` saying what is missing."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; give a folder in mlx-lm's format, or a model's ID")
    config = _json(folder / "config.json", f"{folder}: no config.json; is this an mlx-lm model folder?")
    weights = weight_files(folder)
    for file in weights:
        _check_safetensors(file)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ModelError(f"{folder}: no tokenizer.json; pull or convert the model again")
    provenance: Mapping[str, Any] = {}
    if (folder / PROVENANCE_FILE).is_file():
        provenance = _json(folder / PROVENANCE_FILE, "")
    return FolderFacts(
        context_length=_context_length(config),
        think=_think_markers(folder),
        weights_bytes=sum(file.stat().st_size for file in weights),
        revision=provenance.get("revision"),
        weights_sha256=provenance.get("weights_sha256"),
    )


def weight_files(folder: Path) -> list[Path]:
    """The weight files that must be there, all present. Raises `ModelError` naming the first that isn't."""
    index = folder / INDEX_FILE
    if index.is_file():
        names = sorted(set(_json(index, "").get("weight_map", {}).values()))
    else:
        names = sorted(file.name for file in folder.glob("model*.safetensors"))
    if not names:
        raise ModelError(f"{folder}: no weights (model*.safetensors); pull or convert the model again")
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: {name} is missing; the download is not complete, pull it again")
    return [folder / name for name in names]


def _json(file: Path, missing: str) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(missing) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not readable as JSON ({error}); pull the model again") from None
    if not isinstance(document, dict):
        raise ModelError(f"{file}: not a JSON object; pull the model again")
    return document


def _check_safetensors(file: Path) -> None:
    """The header is whole and the file is as long as it says (the safetensors format)."""
    broken = ModelError(f"{file}: the weights are cut short or corrupt; remove the model and pull it again")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            raise broken
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise broken from None
    if not ends or 8 + length + max(ends) != size:
        raise broken


def _context_length(config: Mapping[str, Any]) -> int | None:
    # Models that also see images keep the language model's numbers one level down.
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        value = part.get("max_position_embeddings")
        if isinstance(value, int) and value > 0:
            return value
    return None


def _think_markers(folder: Path) -> ThinkMarkers | None:
    """Read off the chat template: one that speaks of `<think>` belongs to a model that writes it."""
    template = ""
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    elif (folder / "tokenizer_config.json").is_file():
        template = str(_json(folder / "tokenizer_config.json", "").get("chat_template", ""))
    return ThinkMarkers("<think>", "</think>") if "<think>" in template else None
