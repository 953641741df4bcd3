"""Gathers the facts for `doctor`, and prints the verdicts."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import psutil

from cli.control import ask
from cli.doctor.checks import (
    EXIT_CODES,
    Check,
    check_blas,
    check_clock,
    check_daemon,
    check_disk,
    check_gateway,
    check_memory,
    check_mlx,
    check_port,
    check_private,
    check_python,
    check_service,
    failing,
    ok,
    overall,
    unknown,
)
from cli.models import library
from cli.service import manager
from cli.setup import load_config, paths
from provider.config import Settings
from provider.engine.launch import find_openblas
from provider.engine.model_folder import weight_bytes
from provider.errors import ConfigError, ProviderError, UnknownStateError
from provider.models.catalogue import DEMO_MODEL
from provider.system.identity import KEY_FILE
from provider.system.lock import is_held
from provider.system.service import ServiceError
from provider.unreachable import unreachable_words

_GATEWAY_SECONDS = 5.0
_MLX_SECONDS = 60.0
_MLX_PROGRAM = (
    "import json, mlx.core as mx, mlx_lm\n"
    "(mx.ones(4) + 1).sum().item()\n"
    "print(json.dumps({'version': mx.__version__, 'mlx_lm': mlx_lm.__version__,\n"
    "    'device': str(mx.default_device()), 'metal': mx.metal.is_available()}))"
)


def run_doctor(*, as_json: bool, config_file: Path | None) -> int:
    """Print every check; the exit code: 0 all well, 1 something fails, 3 could not tell."""
    checks = list(_checks(config_file))
    verdict = overall(checks)
    if as_json:
        document = {"verdict": verdict.value, "checks": [asdict(check) for check in checks]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        marks = {"ok": "ok     ", "failing": "FAILING", "unknown": "unknown"}
        for check in checks:
            print(f"{marks[check.verdict]}  {check.id:<11} {check.detail}")
            if check.remedy:
                print(f"{'':21}→ {check.remedy}")
    return EXIT_CODES[verdict]


def _checks(config_file: Path | None) -> Iterator[Check]:
    where = paths()
    settings: Settings | None = None
    try:
        settings = load_config(config_file).settings
        yield ok("config", "the configuration is sound")
    except ConfigError as error:
        yield failing("config", "; ".join(error.lines), "correct the key that is named")
    yield check_python(sys.version_info[:3])
    mac = sys.platform == "darwin"
    yield from check_mlx(*_mlx(), mac=mac)
    if not mac:
        found = find_openblas()
        yield check_blas(str(found) if found else None)
    yield check_disk(str(where.cache), _free_bytes(where.cache))
    yield check_private("key_file", str(where.state / KEY_FILE), _mode(where.state / KEY_FILE))
    running, _ = is_held(where.lock_file)
    status = _status() if running else None
    if settings is not None:
        yield _memory(settings, where.models, status)
        for name, secret in _secrets_named_in(settings):
            yield check_private(name, str(secret), _mode(secret))
        yield _port(settings, status)
        yield from _gateway(settings, status)
    yield from check_daemon(status, running=running)
    yield _service()


def _status() -> Mapping[str, Any] | None:
    try:
        return ask("GET", "status")
    except UnknownStateError:
        return None


def _mlx() -> tuple[Mapping[str, Any] | None, str]:
    """In a process of its own: a broken MLX can end the process that loads it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _MLX_PROGRAM],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MLX_SECONDS,
            check=False,
        )
        return json.loads(done.stdout), ""
    except subprocess.TimeoutExpired:
        return None, f"no answer in {_MLX_SECONDS:.0f} s"
    except ValueError:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"the process ended with {done.returncode}"


def _free_bytes(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _secrets_named_in(settings: Settings) -> Iterator[tuple[str, Path]]:
    """(check's name, file) of what nobody else should read."""
    own = settings.local_gateway
    for name, file in (
        ("token_file", settings.gateway.token_file),
        ("provider_tokens_file", own.provider_tokens_file),
        ("tls_key", own.tls_key),
    ):
        if file is not None:
            yield name, file


def _mode(file: Path) -> int | None:
    try:
        return file.stat().st_mode & 0o777
    except OSError:
        return None


def _memory(settings: Settings, models_folder: Path, status: Mapping[str, Any] | None) -> Check:
    if status is not None and (status.get("engine") or {}).get("ready"):
        # What is loaded fits; `status` says how much room is left.
        return ok("memory", "the engine has loaded its model")
    return check_memory(_weights(settings, models_folder), psutil.virtual_memory().total)


def _weights(settings: Settings, models_folder: Path) -> dict[str, int]:
    models = library(settings, models_folder)
    sizes = {}
    for text in settings.engine.models or (DEMO_MODEL,):
        try:
            model = models.identify(text)
            folder = models.find(model)
        except ProviderError:
            continue
        if folder is not None and (size := weight_bytes(folder)):
            sizes[model.id] = size
    return sizes


def _port(settings: Settings, status: Mapping[str, Any] | None) -> Check:
    host, port = settings.local_gateway.host, settings.local_gateway.port
    if status is not None and status["process"]["state"] == "serving" and not status["process"]["local_url"]:
        return ok("port", "not used: the daemon serves another gateway")
    local = urlsplit((status or {}).get("process", {}).get("local_url") or "")
    if local.port is not None:
        return check_port(local.port, taken=True, ours=True)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.settimeout(1.0)
            taken = port != 0 and probe.connect_ex((host, port)) == 0
    except (OSError, UnicodeError) as error:
        return failing("port", f"{host}: {unreachable_words(error)}", "correct local_gateway.host")
    return check_port(port, taken=taken, ours=False)


def _gateway(settings: Settings, status: Mapping[str, Any] | None) -> list[Check]:
    link = (status or {}).get("link") or {}
    parts = urlsplit(link.get("gateway") or settings.gateway.url)
    origin = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}"
    try:
        skew = _ask_time(parts)
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return [
            check_gateway(origin, unreachable_words(error)),
            unknown("clock", "the gateway can't be asked"),
        ]
    return [check_gateway(origin, None), check_clock(skew)]


def _ask_time(parts: SplitResult) -> float | None:
    """This machine's clock minus the gateway's, in seconds; any HTTP answer has a `Date` to the second."""
    assert parts.hostname is not None
    connection: http.client.HTTPConnection
    if parts.scheme == "wss":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_GATEWAY_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_GATEWAY_SECONDS)
    try:
        before = time.time()
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        middle = (before + time.time()) / 2
    finally:
        connection.close()
    try:
        return middle - parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None


def _service() -> Check:
    try:
        status = manager().status()
    except ServiceError as error:
        if manager().file.is_file():
            return unknown("service", f"installed, but {error}")
        # A machine without a service manager (a container) runs the daemon by other means.
        return ok("service", f"not used: {error}")
    return check_service(
        installed=status.installed,
        running=status.running,
        last_exit=status.last_exit,
        other=status.other,
    )
