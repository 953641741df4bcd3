"""`diagnose`: what someone who helps needs to see, in one zip, shown before it is written.

Facts of the machine, the verdicts of `doctor`, the configuration in force, the status document, logs. No key,
no token, no prompt, no answer: secrets live in files that are only named here, `redaction` sees to the rest.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path

from cli.control import ask
from cli.diagnose.redaction import Redaction, secrets_in
from cli.doctor.run import run_doctor
from cli.logs import log_files
from cli.setup import config_file as locate
from cli.setup import load_config, paths
from provider.config import named_files
from provider.errors import ConfigError, ProviderError, UnknownStateError
from provider.logs import older
from provider.system.facts import this_machine
from provider.system.identity import KEY_FILE

LOGS = "logs/"

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


# Files that hold secrets, of those that the configuration names.
_SECRET_FILES = ("gateway.token_file", "local_gateway.provider_tokens_file", "local_gateway.tls_key")
# How much of each log is shown.
_SHOWN_LINES = 5


def diagnose(*, output: Path | None, yes: bool, config_file: Path | None) -> None:
    """Show all that goes in, of logs the ends; ask, write the zip. Raises `ProviderError`."""
    target = output or Path(f"malibu-provider-{time.strftime('%Y%m%d-%H%M%S')}.zip")
    parts = dict(_parts(config_file))
    _show(parts)
    print(f"{target} will hold what is shown above, and of the logs all lines:")
    for name, text in parts.items():
        print(f"  {name:<24} {len(text.encode()):>10,} bytes")
    print("Keys, tokens, prompts, answers and the messages of exceptions are left out.")
    if not yes and not _agreed():
        print("nothing was written")
        return
    try:
        with target.open("xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in parts.items():
                archive.writestr(name, text)
        target.chmod(0o600)
    except FileExistsError:
        raise ProviderError(f"{target} is there already; name another with --output") from None
    except OSError as error:
        raise ProviderError(f"can't write {target}: {error.strerror}") from None
    print(f"written: {target}")


def _show(parts: Mapping[str, str]) -> None:
    for name, text in parts.items():
        lines = text.splitlines()
        if name.startswith(LOGS) and len(lines) > _SHOWN_LINES:
            print(f"--- {name}: the last {_SHOWN_LINES} of {len(lines)} lines")
            lines = lines[-_SHOWN_LINES:]
        else:
            print(f"--- {name}")
        print("\n".join(lines), end="\n\n")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ProviderError("write it? There is no terminal to ask at; say --yes")
    return input("Write it? [y/N] ").strip().lower() in ("y", "yes")


def _parts(config_file: Path | None) -> Iterator[tuple[str, str]]:
    """Name and text of each file of the zip, without secrets."""
    redaction = Redaction(secrets_in(_secret_files(config_file)))
    for name, document in _documents(config_file):
        yield name, json.dumps(redaction.document(document), indent=2, ensure_ascii=False) + "\n"
    where = paths()
    crashes = [older(where.crash_log, 1), where.crash_log, where.logs / "crash.txt"]
    for file in (*log_files(where.log_file), *crashes):
        if file.is_file():
            yield f"{LOGS}{file.name}", redaction.log(file.read_text(encoding="utf-8", errors="replace"))


def _secret_files(config_file: Path | None) -> Iterator[Path]:
    yield paths().state / KEY_FILE
    file, _ = locate(config_file)
    yield from named_files(file=file, environment=os.environ, flags={}, keys=_SECRET_FILES)


def _documents(config_file: Path | None) -> Iterator[tuple[str, object]]:
    yield "facts.json", _facts()
    yield "doctor.json", _doctor(config_file)
    try:
        loaded = load_config(config_file)
        origins = {key: loaded.origins.get(key, "default") for key in loaded.values()}
        yield "config.json", {"values": loaded.values(), "origins": origins}
    except ConfigError as error:
        yield "config.json", {"problems": list(error.lines)}
    try:
        yield "status.json", ask("GET", "status")
    except UnknownStateError as error:
        yield "status.json", {"unknown": str(error)}


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


def _doctor(config_file: Path | None) -> object:
    printed = io.StringIO()
    with redirect_stdout(printed):
        run_doctor(as_json=True, config_file=config_file)
    return json.loads(printed.getvalue())
