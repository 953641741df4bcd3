"""What an engine is started with: its models and its settings, as plain values.

The composition root fills these from the configuration, the catalogue and the model folders; nothing here
reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from gateway_protocol.families import Family
from provider.engine.base import ModelInfo, ThinkMarkers

Backend = Literal["mlx", "scripted"]
Device = Literal["gpu", "cpu"]

# Prompt tokens in one step, over all its prompts, while nothing else decodes. On a GPU what mlx-lm takes for
# its fastest prefill; a CPU gains nothing from more, and a cancel or the watchdog would wait for seconds.
PREFILL_ALONE: Final[Mapping[Device, int]] = MappingProxyType({"gpu": 2048, "cpu": 512})


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model that may be served.

    `path`: its mlx-lm folder (the scripted backend needs none). `context_length`, `max_output_tokens`: in
    tokens; `max_output_tokens` `None`: as many as the context holds. `think`: the markers of its reasoning.
    """

    id: str
    family: Family
    context_length: int
    path: Path | None = None
    max_output_tokens: int | None = None
    think: ThinkMarkers | None = None
    revision: str | None = None
    weights_sha256: str | None = None

    @property
    def output_cap(self) -> int:
        return min(self.max_output_tokens or self.context_length, self.context_length)

    def info(self, *, grammars: bool) -> ModelInfo:
        """`grammars`: the engine has them."""
        return ModelInfo(
            id=self.id,
            family=self.family,
            context_length=self.context_length,
            max_output_tokens=self.output_cap,
            think=self.think,
            can_force=grammars and self.family is not Family.NONE,
            can_constrain=grammars,
            revision=self.revision,
            weights_sha256=self.weights_sha256,
        )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When a silent child counts as wedged, in seconds.

    `start`: from spawn until it reports. `load`, `load_per_gib`: for one model. `step`: between two signs of
    life of the step loop. `first_token`, `first_token_per_prompt_token`: from a job's admission; the tokens
    are all those that were waiting to be prefilled then, since prompts share the device.
    """

    start: float = 60.0
    load: float = 180.0
    load_per_gib: float = 30.0
    step: float = 60.0
    first_token: float = 120.0
    first_token_per_prompt_token: float = 0.1


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs.

    `slots`: jobs decoded at once; `None`: what memory holds (`memory`), 1 to 8. `queue_seconds`: how long a
    job over that waits. `preload`: load the first model at start, else every model at its first job.
    `script`, `device`: of the scripted backend. `prefill_step`: prompt tokens computed between two decoding
    steps while others decode, at most, and never more than half of `PREFILL_ALONE`. `forcing`: use grammars.
    `prompt_cache_bytes`, `memory_limit_bytes` `None`: derived from the machine. `idle_unload_seconds`
    `None`: models stay loaded.
    """

    backend: Backend = "mlx"
    models: tuple[ModelSpec, ...] = ()
    slots: int | None = None
    queue_seconds: float = 10.0
    queue_length: int = 64
    preload: bool = True
    script: Path | None = None
    device: Device = "cpu"
    prefill_step: int = 512
    forcing: bool = True
    prompt_cache_bytes: int | None = None
    memory_limit_bytes: int | None = None
    idle_unload_seconds: float | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)

    def model(self, model_id: str) -> ModelSpec | None:
        return next((spec for spec in self.models if spec.id == model_id), None)
