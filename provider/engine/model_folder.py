"""What an mlx-lm model folder says of itself, read without loading it: is it whole, how big, which facts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from provider.engine.errors import EngineStartError

_HEADER_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000


def weight_files(folder: Path) -> list[Path]:
    """The files mlx-lm loads."""
    return sorted(folder.glob("model*.safetensors"))


def weight_bytes(folder: Path) -> int:
    """Size of the weights on disk, which is about what they take in memory."""
    return sum(file.stat().st_size for file in weight_files(folder))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `EngineStartError` naming the file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineStartError(f"{file} can't be read: {error}; pull the model again") from None
    if not isinstance(value, dict):
        raise EngineStartError(f"{file} is not a JSON object; pull the model again")
    return value


def check_folder(model: str, folder: Path | None) -> None:
    """Raise `EngineStartError`, saying what to do, for what can be seen without loading.

    No folder, no configuration, no tokenizer, no weights, a weights file that was cut short, a part that
    the index names and that isn't there.
    """
    if folder is None or not folder.is_dir():
        raise EngineStartError(
            f"model {model}: there is no folder {folder}; `malibu-provider models pull {model}`"
        )
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise EngineStartError(f"model {model}: {folder} holds no {needed}; it is no mlx-lm model folder")
    read_json(folder / "config.json")
    files = weight_files(folder)
    index = folder / "model.safetensors.index.json"
    named = set(read_json(index).get("weight_map", {}).values()) if index.is_file() else set()
    missing = sorted(named - {file.name for file in files})
    if not files or missing:
        what = f"{missing[0]} is missing from" if missing else "there are no weights (model*.safetensors) in"
        raise EngineStartError(f"model {model}: {what} {folder}; pull or convert the model again")
    for file in files:
        problem = _damage(file)
        if problem:
            raise EngineStartError(f"model {model}: {file} is damaged ({problem}); pull the model again")


def _damage(file: Path) -> str | None:
    """What is wrong with a safetensors file as far as its header and size tell."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(_HEADER_LENGTH.size)
        if len(start) < _HEADER_LENGTH.size:
            return "it is cut short"
        (length,) = _HEADER_LENGTH.unpack(start)
        if not 2 <= length <= min(size - _HEADER_LENGTH.size, _LARGEST_HEADER):
            return "its header makes no sense"
        try:
            header = json.loads(stream.read(length))
            end = max(
                (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"),
                default=0,
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "its header makes no sense"
    if _HEADER_LENGTH.size + length + end != size:
        return "its size is not what its header says"
    return None
