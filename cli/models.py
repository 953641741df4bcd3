"""`models list`, `models pull`, `models remove`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from cli.setup import load_config, paths
from provider.config import Settings
from provider.models.catalogue import catalogue
from provider.models.library import ModelLibrary
from provider.models.recommend import recommend
from provider.system.facts import this_machine


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


def recommend_models(*, as_json: bool) -> None:
    """What of the catalogue fits this machine, and about how fast it would be."""
    machine = this_machine(paths().state).hardware()
    found = recommend(
        catalogue().values(),
        memory_bytes=machine.memory_bytes,
        chip=machine.chip,
        gpu_cores=machine.gpu_cores,
    )
    if as_json:
        document = {"machine": asdict(machine), "models": [asdict(each) for each in found]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    print(f"{machine.chip or 'this machine'}, {machine.memory_bytes / 2**30:.0f} GB of memory")
    for each in found:
        speed = f"about {each.tokens_per_s:.0f} tokens/s" if each.tokens_per_s else "speed unknown"
        verdict = speed if each.fits else f"for {each.machine_gb:.0f} GB and more"
        print(f"{'fits' if each.fits else '-':<5} {each.weights_gb:>5.1f} GB  {verdict:<22} {each.id}")


def pull_model(text: str, *, config_file: Path | None) -> None:
    models = _library(config_file)
    models.spec(known := models.identify(text), models.pull(known, report))


def remove_model(text: str, *, config_file: Path | None) -> None:
    models = _library(config_file)
    known = models.identify(text)
    print(f"{known.id}: {models.remove(known) / 1e9:.1f} GB freed")
