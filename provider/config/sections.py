"""Every key there is, by section, with its default and what it may be.

A validator writes "key|text" where the fault belongs to a key below the one it checks; `faults` reads that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from provider.policy.schedule import parse_window

LINK_PATH = "/v1/provider"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def _whole(value: object) -> object:
    # pydantic reads `true` as 1 and 3.0 as 3; in a configuration either is a slip.
    if isinstance(value, bool | float):
        raise ValueError("must be a whole number")
    return value


def _words(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _version(value: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)*", value, re.ASCII) is None:
        raise ValueError("must be a version in numbers, such as 1.2.0")
    return value


def _expanded(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


def _url_parts(url: str) -> SplitResult:
    """The parts of `url`, its port among those there are. Raises `ValueError` that blames the key `url`."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"url|is no URL: {error}") from None
    return parts


Whole = Annotated[int, BeforeValidator(_whole)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FilePath = Annotated[Path, BeforeValidator(_expanded)]
Version = Annotated[str, AfterValidator(_version)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class GatewaySection(Section):
    """The gateway this daemon serves."""

    url: str = "wss://api.malibu.tech/v1/provider"
    token_file: FilePath | None = None
    allow_insecure: bool = False
    refused_retry_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 600.0

    @model_validator(mode="after")
    def _checked_url(self) -> GatewaySection:
        parts = _url_parts(self.url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError("url|must be a ws:// or wss:// URL, such as wss://api.malibu.tech/v1/provider")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("url|must hold no user, query or fragment (a token goes in gateway.token_file)")
        if parts.scheme == "ws" and parts.hostname not in LOOPBACK_HOSTS and not self.allow_insecure:
            raise ValueError(
                "url|ws:// to another host is not encrypted; use wss://, or set gateway.allow_insecure = true"
            )
        if parts.path in ("", "/"):
            # Every gateway serves the link at one path, so a bare origin can mean nothing else.
            object.__setattr__(self, "url", urlunsplit(parts._replace(path=LINK_PATH)))
        return self


class EngineSection(Section):
    """What generates, and with which models."""

    kind: Literal["mlx", "scripted"] = "mlx"
    models: Words = ()
    script: FilePath | None = None
    slots: Annotated[Whole, Field(ge=1, le=1024)] | None = None
    memory_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    prompt_cache_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    idle_unload_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    measure_at_start: bool = True


class ModelSection(Section):
    """What a model's files don't say, for one model ID."""

    path: FilePath | None = None
    tool_parser: Literal["qwen", "gpt_oss", "llama", "none"] | None = None
    context_length: Annotated[Whole, Field(ge=1)] | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    revision: str | None = None


class ToolsSection(Section):
    streaming: Literal["auto", "incremental", "whole"] = "auto"
    force: bool = True
    parallel_when_omitted: Literal["one", "all"] = "one"


class LimitsSection(Section):
    messages: Annotated[Whole, Field(ge=0)] = 256


class QueueSection(Section):
    """The daemon's own queue, in front of the engine."""

    seconds: Seconds = 10.0


class DispatchSection(Section):
    """The local gateway's queue and the times it gives a provider."""

    queue_seconds: Seconds = 30.0
    queue_length: Annotated[Whole, Field(ge=0)] = 64
    first_content_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    resume_seconds: Seconds = 60.0


class DrainSection(Section):
    seconds: Seconds = 30.0


class LocalGatewaySection(Section):
    """Where the local gateway listens, and whom it lets in."""

    host: str = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8080
    keys_file: FilePath | None = None
    provider_tokens_file: FilePath | None = None
    provider_keys: Words | None = None
    minimum_version: Version | None = None
    recommended_version: Version | None = None
    hosts: Words = ()
    origins: Words = ()
    tls_cert: FilePath | None = None
    tls_key: FilePath | None = None
    requests_per_minute: Annotated[Whole, Field(ge=1)] | None = None
    streams_per_key: Annotated[Whole, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _tls_is_a_pair(self) -> LocalGatewaySection:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ValueError(f"{missing}|is needed too: a certificate and its key go together")
        return self


PressureLimit = Literal["fair", "serious", "critical", "off"]


class PolicySection(Section):
    """When this machine may serve."""

    windows: Words = ()
    keep_awake: bool = True
    on_battery: bool | None = None
    low_power: bool | None = None
    thermal: PressureLimit = "serious"
    memory: PressureLimit = "critical"
    user_idle_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    free_disk_gb: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _checked_windows(self) -> PolicySection:
        for window in self.windows:
            try:
                parse_window(window)
            except ValueError as error:
                raise ValueError(f"windows|{error}") from None
        return self


class MetricsSection(Section):
    port: Annotated[Whole, Field(ge=1, le=65535)] | None = None


class StatusSection(Section):
    enabled: bool = True
    url: str | None = None

    @model_validator(mode="after")
    def _checked_url(self) -> StatusSection:
        if self.url is None:
            return self
        parts = _url_parts(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url|must be an http:// or https:// URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            # It is shown in `status` and in what `diagnose` collects.
            raise ValueError("url|must hold no user, query or fragment (each report is signed)")
        return self


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


# Files that are only read: one that is missing is a slip in the configuration.
FILE_KEYS = (
    "engine.script",
    "gateway.token_file",
    "local_gateway.keys_file",
    "local_gateway.provider_tokens_file",
    "local_gateway.tls_cert",
    "local_gateway.tls_key",
)


class Settings(Section):
    """The whole configuration, checked. Immutable; a change of the file is a new `Settings`."""

    contract: Literal["malibu", "strict"] = "malibu"
    gateway: GatewaySection = GatewaySection()
    engine: EngineSection = EngineSection()
    model: Mapping[str, ModelSection] = Field(default_factory=dict)
    tools: ToolsSection = ToolsSection()
    limits: LimitsSection = LimitsSection()
    queue: QueueSection = QueueSection()
    dispatch: DispatchSection = DispatchSection()
    drain: DrainSection = DrainSection()
    local_gateway: LocalGatewaySection = LocalGatewaySection()
    policy: PolicySection = PolicySection()
    metrics: MetricsSection = MetricsSection()
    status: StatusSection = StatusSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _files_are_there(self, info: ValidationInfo) -> Settings:
        made_now = (info.context or {}).get("made_now")
        if self.engine.kind == "scripted" and self.engine.script is None:
            raise ValueError('engine.script|is needed with engine.kind = "scripted": a JSON Lines file')
        for key in FILE_KEYS:
            section, _, name = key.partition(".")
            file = getattr(getattr(self, section), name)
            if file is not None and not file.is_file() and key != made_now:
                raise ValueError(f"{key}|no such file: {file}")
        return self


def known_keys() -> list[str]:
    """Every key there is, dotted, in order; a model's own keys are `model.<id>.key`."""
    keys: list[str] = []
    for name, field in Settings.model_fields.items():
        if name == "model":
            keys += [f"model.<id>.{key}" for key in ModelSection.model_fields]
        elif isinstance(field.default, Section):
            keys += [f"{name}.{key}" for key in type(field.default).model_fields]
        else:
            keys.append(name)
    return keys
