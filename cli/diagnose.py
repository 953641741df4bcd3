"""`diagnose`: what someone who helps needs to see, in one zip, shown before it is written.

Logs, the configuration in force, the verdicts of `doctor`, the status document and facts of the machine. No
key, no token, no prompt, no output: secrets live in files that are only named here, logs never hold the rest.
"""

from __future__ import annotations

import io
import json
import platform
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path

from cli.control import ask
from cli.doctor.run import run_doctor
from cli.logs import log_files
from cli.setup import load_config, paths
from provider.errors import ConfigError, ProviderError, UnknownStateError
from provider.logs import older
from provider.system.facts import this_machine

# The packages whose versions explain most.
_PACKAGES = (
    "malibu-provider",
    "mlx",
    "mlx-lm",
    "mlx-metal",
    "transformers",
    "llguidance",
    "aiohttp",
    "websockets",
)


def diagnose(*, output: Path | None, yes: bool, config_file: Path | None) -> None:
    """Show what goes in, ask, write the zip. Raises `ProviderError`."""
    target = output or Path(f"malibu-provider-{time.strftime('%Y%m%d-%H%M%S')}.zip")
    parts = dict(_parts(config_file))
    print(f"{target} will hold:")
    for name, data in parts.items():
        print(f"  {name:<24} {len(data):>10,} bytes")
    print("No keys, tokens, prompts or answers are in it; look for yourself before you pass it on.")
    if not yes and not _agreed():
        print("nothing was written")
        return
    try:
        with target.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in parts.items():
                archive.writestr(name, data)
        target.chmod(0o600)
    except FileExistsError:
        raise ProviderError(f"{target} is there already; name another with --output") from None
    except OSError as error:
        raise ProviderError(f"can't write {target}: {error.strerror}") from None
    print(f"written: {target}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ProviderError("write it? There is no terminal to ask at; say --yes")
    return input("Write it? [y/N] ").strip().lower() in ("y", "yes")


def _parts(config_file: Path | None) -> Iterator[tuple[str, bytes]]:
    yield "facts.json", _json(_facts())
    yield "doctor.json", _doctor(config_file)
    try:
        loaded = load_config(config_file)
        origins = {key: loaded.origins.get(key, "default") for key in loaded.values()}
        yield "config.json", _json({"values": loaded.values(), "origins": origins})
    except ConfigError as error:
        yield "config.json", _json({"problems": list(error.lines)})
    try:
        yield "status.json", _json(ask("GET", "status"))
    except UnknownStateError as error:
        yield "status.json", _json({"unknown": str(error)})
    where = paths()
    crashes = [older(where.crash_log, 1), where.crash_log, where.logs / "crash.txt"]
    for file in (*log_files(where.log_file), *crashes):
        if file.is_file():
            yield f"logs/{file.name}", file.read_bytes()


def _facts() -> dict[str, object]:
    machine = this_machine(paths().state)
    versions = {each.name: each.version for each in distributions() if each.name in _PACKAGES}
    return {
        "python": sys.version,
        "platform": platform.platform(),
        "hardware": asdict(machine.hardware()),
        "condition": asdict(machine.condition()),
        "packages": dict(sorted(versions.items())),
        "paths": {name: str(getattr(paths(), name)) for name in ("state", "config_file", "cache", "logs")},
    }


def _doctor(config_file: Path | None) -> bytes:
    printed = io.StringIO()
    with redirect_stdout(printed):
        run_doctor(as_json=True, config_file=config_file)
    return printed.getvalue().encode()


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n").encode()
