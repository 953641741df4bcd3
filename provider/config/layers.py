"""A TOML file, the environment, flags: each key of a later layer beats the same key of an earlier one."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from provider.config.faults import describe
from provider.config.sections import FILE_KEYS, Settings
from provider.errors import ConfigError

ENV_PREFIX = "MALIBU_PROVIDER_"
# Names under the prefix that aren't configuration keys: the two that say where to look.
ENV_HOME = "MALIBU_PROVIDER_HOME"
ENV_CONFIG = "MALIBU_PROVIDER_CONFIG"


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
    read = _read_file(file, required=file_required)
    for key, value, origin in _layers(read, str(file), environment, flags, flag_names or {}):
        _put(merged, key, value)
        origins[key] = origin
    try:
        settings = Settings.model_validate(merged, context={"made_now": made_now})
    except ValidationError as error:
        raise ConfigError([describe(fault, origins) for fault in error.errors()]) from None
    return LoadedConfig(settings, origins, file)


def named_files(
    *, file: Path, environment: Mapping[str, str], flags: Mapping[str, Any], keys: Iterable[str] = FILE_KEYS
) -> tuple[Path, ...]:
    """The files that the configuration names, existing or not, as far as its layers can be read at all.

    Unlike `load` it checks nothing: a configuration may be faulty just because one of them is missing.
    """
    try:
        read = _read_file(file, required=False)
    except ConfigError:
        read = {}
    values = {key: value for key, value, _ in _layers(read, "", environment, flags, {})}
    files: list[Path] = []
    for key in keys:
        value = values.get(key)
        if isinstance(value, str) and value:
            with contextlib.suppress(RuntimeError):  # ~nobody
                files.append(Path(value).expanduser())
    return tuple(files)


def _layers(
    read: Mapping[str, Any],
    origin: str,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    flag_names: Mapping[str, str],
) -> Iterator[tuple[str, Any, str]]:
    """(key, value, where it was set), the layer that beats the others last. `read`: the file's tree."""
    yield from ((key, value, origin) for key, value in _flatten(read))
    yield from _from_environment(environment)
    for key, value in flags.items():
        if value is not None:
            yield key, value, flag_names.get(key, "command line")


def _read_file(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError([f"config: no such file: {file}"]) from None
        return {}
    except OSError as error:
        raise ConfigError([f"config: can't read {file}: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"config: can't read {file}: not UTF-8 at byte {error.start}"]) from None
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
