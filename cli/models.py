"""`models list`, `models pull`, `models remove`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cli.setup import load_config, paths
from provider.config import Settings
from provider.models.library import ModelLibrary


def library(settings: Settings, folder: Path) -> ModelLibrary:
    """The model library as configured."""
    return ModelLibrary.configured(folder, {name: dict(section) for name, section in settings.model.items()})


def report(line: str) -> None:
    """Progress goes to stderr: stdout is for results."""
    print(line, file=sys.stderr, flush=True)


def _library(config_file: Path | None) -> ModelLibrary:
    return library(load_config(config_file).settings, paths().models)


def list_models(*, as_json: bool, config_file: Path | None) -> None:
    models = _library(config_file).listing()
    if as_json:
        document = [
            {
                "id": model.id,
                "family": model.family.value,
                "context_length": model.context_length,
                "installed": model.folder is not None,
                "folder": str(model.folder) if model.folder else None,
                "size_bytes": model.size_bytes,
                "in_catalogue": model.in_catalogue,
            }
            for model in models
        ]
        print(json.dumps({"models": document}, indent=2, ensure_ascii=False))
        return
    width = max(len(model.id) for model in models)
    for model in models:
        size = f"{model.size_bytes / 1e9:6.1f} GB" if model.size_bytes is not None else "not here".rjust(9)
        calls = "tool calls" if model.family != "none" else ""
        print(f"{model.id:<{width}}  {size}  {calls}".rstrip())


def pull_model(text: str, *, config_file: Path | None) -> None:
    models = _library(config_file)
    models.spec(known := models.identify(text), models.pull(known, report))


def remove_model(text: str, *, config_file: Path | None) -> None:
    models = _library(config_file)
    known = models.identify(text)
    print(f"{known.id}: {models.remove(known) / 1e9:.1f} GB freed")
