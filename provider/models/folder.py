"""What the files of a model folder say of the model, beyond what the engine reads for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.engine.base import ThinkMarkers
from provider.engine.model_folder import check_folder, read_json, weight_bytes

# What this product writes beside a model it made: where it came from and the hash of its weights.
PROVENANCE_FILE = "malibu.json"


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """What the files say. `context_length` in tokens; `weights_bytes`: on disk."""

    context_length: int | None
    think: ThinkMarkers | None
    weights_bytes: int
    revision: str | None
    weights_sha256: str | None


def read_folder(model: str, folder: Path) -> FolderFacts:
    """Check that the folder can be loaded, read its facts. Raises `ProviderError` saying what is missing."""
    check_folder(model, folder)
    provenance: Mapping[str, Any] = {}
    if (folder / PROVENANCE_FILE).is_file():
        provenance = read_json(folder / PROVENANCE_FILE)
    return FolderFacts(
        context_length=_context_length(read_json(folder / "config.json")),
        think=_think_markers(folder),
        weights_bytes=weight_bytes(folder),
        revision=provenance.get("revision"),
        weights_sha256=provenance.get("weights_sha256"),
    )


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
        template = str(read_json(folder / "tokenizer_config.json").get("chat_template", ""))
    return ThinkMarkers("<think>", "</think>") if "<think>" in template else None
