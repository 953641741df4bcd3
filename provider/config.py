"""Configuration: flags > environment > TOML file > defaults, every key checked, every fault named.

A key is `section.key` (`contract` stands alone). In the environment it is `MALIBU_PROVIDER_SECTION__KEY`; a
list may be given there as comma-separated text. `configs/provider.example.toml` documents each key. Only
`cli` and `provider.app` read this; every other room takes plain values.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from provider.errors import ConfigError
from provider.policy.schedule import parse_window

ENV_PREFIX = "MALIBU_PROVIDER_"
# Names under the prefix that aren't configuration keys: the two that say where to look.
ENV_HOME = "MALIBU_PROVIDER_HOME"
ENV_CONFIG = "MALIBU_PROVIDER_CONFIG"
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
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class GatewaySection(Section):
    """The gateway this daemon serves."""

    url: str = "wss://api.malibu.tech/v1/provider"
    token_file: FilePath | None = None
    allow_insecure: bool = False

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
        if self.url is not None and _url_parts(self.url).scheme not in ("http", "https"):
            raise ValueError("url|must be an http:// or https:// URL")
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


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """`origins`: dotted key → where its value was set, in words; a key that isn't there has its default.

    `file`: the TOML file that was looked for, whether it exists or not.
    """

    settings: Settings
    origins: Mapping[str, str]
    file: Path

    def values(self) -> dict[str, Any]:
        """Every key with its value in force, as JSON types, in the order of the sections."""
        return dict(_flatten(self.settings.model_dump(mode="json")))


def load(
    *,
    file: Path,
    file_required: bool,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    flag_names: Mapping[str, str] | None = None,
    made_now: str | None = None,
) -> LoadedConfig:
    """Merge the layers and check them. `flags`: dotted key → value, `None` for a flag that wasn't given.

    `flag_names`: dotted key → the flag as typed, for messages. `made_now`: a key whose file the caller is
    about to make, so it may be missing. Raises `ConfigError`.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    names = flag_names or {}
    layers = (
        [(key, value, str(file)) for key, value in _flatten(_read_file(file, required=file_required))],
        [(key, value, name) for key, value, name in _from_environment(environment)],
        [(key, value, names.get(key, "command line")) for key, value in flags.items() if value is not None],
    )
    for layer in layers:
        for key, value, origin in layer:
            _put(merged, key, value)
            origins[key] = origin
    try:
        settings = Settings.model_validate(merged, context={"made_now": made_now})
    except ValidationError as error:
        raise ConfigError([_describe(fault, origins) for fault in error.errors()]) from None
    return LoadedConfig(settings, origins, file)


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


def _read_file(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError([f"config: no such file: {file}"]) from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"config: can't read {file}: {error}"]) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"config: {file} is not TOML: {error}"]) from None


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, value in sorted(environment.items()):
        if name.startswith(ENV_PREFIX) and name not in (ENV_HOME, ENV_CONFIG):
            yield name[len(ENV_PREFIX) :].lower().replace("__", "."), value, name


def _split(key: str) -> list[str]:
    """A dotted key's parts; a model's ID, which may hold dots and slashes, stays one part."""
    if key.startswith("model."):
        model_id, _, name = key[len("model.") :].rpartition(".")
        return ["model", model_id, name] if model_id else ["model", name]
    return key.split(".")


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *folders, name = _split(key)
    for depth, folder in enumerate(folders):
        below = tree.setdefault(folder, {})
        if not isinstance(below, dict):
            if folders[0] == "model" or (depth == 0 and folder != "contract"):
                # A layer below gave a section one value, `engine = 3`: that is the fault to report.
                return
            below = tree[folder] = {}
        tree = below
    tree[name] = value


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        elif not isinstance(value, Mapping) or prefix or name != "model":
            yield f"{prefix}{name}", value


_KINDS = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list",
    "path_type": "must be a path in quotes",
    "model_type": "must be a section of keys",
    "mapping_type": "must be a section of keys",
}


def _nearest(key: str) -> str | None:
    """The key that was probably meant: the same name in another section, else one spelled much alike."""
    known = known_keys()
    name = key.rpartition(".")[2]
    same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == name]
    sections = {candidate.partition(".")[0] for candidate in known}
    return next(iter([*same_name, *difflib.get_close_matches(key, [*known, *sections], n=1)]), None)


def _describe(fault: ErrorDetails, origins: Mapping[str, str]) -> str:
    """One line: key, what is wrong, where it was set."""
    key = ".".join(str(part) for part in fault["loc"])
    context = fault.get("ctx", {})
    given = fault["input"]
    if fault["type"] == "extra_forbidden":
        near = _nearest(key)
        text = f"unknown key (did you mean {near}?)" if near else "unknown key"
    elif fault["type"] == "value_error":
        # Our own validators write "key|text" where the fault belongs to a key below the one they check.
        below, bar, rest = str(context["error"]).partition("|")
        key, text = (f"{key}.{below}" if key else below, rest) if bar else (key, f"{below}, not {given!r}")
    elif fault["type"] == "literal_error":
        text = f"must be {context['expected']}, not {given!r}"
    elif fault["type"] in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        text = f"{fault['msg'].replace('Input should be', 'must be')}, not {given!r}"
    else:
        text = f"{_KINDS.get(fault['type'], fault['msg'])}, not {given!r}"
    origin = origins.get(key) or next((o for k, o in origins.items() if k.startswith(f"{key}.")), None)
    return f"{key}: {text}" + (f" (from {origin})" if origin else "")
