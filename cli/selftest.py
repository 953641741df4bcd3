"""`self-test`: what can only be shown on the machine itself, each with a verdict.

Metal and the mask over logits, facts of power and heat, the command that keeps the machine awake, a service's
whole life under a throw-away label, and one forced call by a model of the catalogue. A system that lacks a
thing skips its test and says so. The set-up of the user is untouched: folders, label and port are its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cli.trial import TrialFailed, end_daemon, forced_call, start_daemon, wait_until_ready
from provider.config import ENV_HOME
from provider.errors import ProviderError
from provider.models.catalogue import DEMO_MODEL
from provider.system.caffeinate import wake_command
from provider.system.facts import this_machine
from provider.system.launchd import Launchd
from provider.system.service import RESTART_INTERVAL, ServiceManager, ServiceSpec
from provider.system.systemd import Systemd

MAC = sys.platform == "darwin"
_LABEL = f"tech.malibu.provider.selftest.{os.getpid()}"
_AWAKE_SECONDS = 1.0
_SERVICE_SECONDS = RESTART_INTERVAL * 6.0
_MASK_PROGRAM = """
import json, mlx.core as mx, numpy as np
from provider.engine.mask_kernel import chosen
apply_masks, words = chosen()
rng = np.random.default_rng(0)
for width in (31, 32, 33, 151_936):
    logits = rng.standard_normal((4, width)).astype(np.float32)
    allowed = rng.random((4, width)) < 0.5
    padded = np.pad(allowed, ((0, 0), (0, -width % 32)))
    packed = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)
    found = np.array(apply_masks(mx.array(logits), mx.array(packed)))
    assert np.array_equal(found, np.where(allowed, logits, -np.inf)), width
print(json.dumps([str(mx.default_device()), mx.metal.is_available(), words]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`verdict`: passed, failed or skipped."""

    id: str
    verdict: str
    detail: str


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def run_selftest(*, as_json: bool, model: str | None) -> int:
    """Print each verdict; the exit code: 0 none failed, 1 one did."""
    outcomes = []
    for outcome in _outcomes(model):
        outcomes.append(outcome)
        if not as_json:
            print(f"{outcome.verdict:<8} {outcome.id:<12} {outcome.detail}", flush=True)
    failed = any(outcome.verdict == "failed" for outcome in outcomes)
    if as_json:
        document = {"verdict": "failed" if failed else "passed", "tests": [asdict(each) for each in outcomes]}
        print(json.dumps(document, indent=2, ensure_ascii=False))
    return int(failed)


def _outcomes(model: str | None) -> Iterator[Outcome]:
    tests: dict[str, Callable[[], str]] = {
        "mask": _mask,
        "metal": _metal,
        "facts": _facts,
        "awake": _awake,
        "service": _service,
        "forced_call": lambda: _forced_call(model),
    }
    for name, test in tests.items():
        try:
            yield Outcome(name, "passed", test())
        except Skipped as reason:
            yield Outcome(name, "skipped", str(reason))
        except (Failed, TrialFailed, ProviderError, OSError) as error:
            yield Outcome(name, "failed", str(error))
        except Exception as error:  # each test has its verdict, whatever another ran into
            yield Outcome(name, "failed", f"{type(error).__name__}: {error}")


def _mlx() -> tuple[str, bool, str]:
    """MLX's device, whether it has Metal, how masks are applied. In a process that may die of it."""
    done = subprocess.run(
        [sys.executable, "-c", _MASK_PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise Failed((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    device, metal, words = json.loads(done.stdout)
    return device, metal, words


def _mask() -> str:
    """The mask over random logits is what the rule says, on the device that will compute it."""
    device, metal, words = _mlx()
    if metal and not words.startswith("Metal kernel"):
        raise Failed(f"{words}; answers are right all the same, only slower")
    return f"equal to the rule at four widths, on {device} ({words})"


def _metal() -> str:
    device, metal, _ = _mlx()
    if not MAC:
        raise Skipped(f"not on this system; MLX computes on {device}")
    if not metal or "gpu" not in device:
        raise Failed(f"MLX computes on {device}")
    return device


def _facts() -> str:
    condition = asdict(this_machine(Path.home()).condition())
    told = {name: value for name, value in condition.items() if value is not None}
    wanted = {"free_disk_bytes", "memory_pressure"} | (
        {"thermal", "low_power", "on_battery"} if MAC else set()
    )
    missing = sorted(wanted - told.keys())
    if missing:
        raise Failed(f"the system doesn't tell {', '.join(missing)}")
    return ", ".join(f"{name} {value}" for name, value in told.items())


def _awake() -> str:
    command = wake_command(os.getpid())
    if command is None:
        raise Skipped("there is no command for it here")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, complaint = process.communicate(timeout=_AWAKE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{command[0]} holds it"
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    words = f"{command[0]} ended with {process.returncode}: {complaint.strip()}"
    # On Linux that is a matter of rights; a Mac grants it to everyone.
    raise Failed(words) if MAC else Skipped(words)


def _service() -> str:
    """Install, crash, come back by itself, stop, stay stopped, uninstall."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        # Two runs crash, as an installation may begin both; a third, by the manager alone, stays.
        script = f"echo run >> '{runs}'; [ $(wc -l < '{runs}') -gt 2 ] || exit 1; exec sleep 600"
        spec = ServiceSpec(["/bin/sh", "-c", script], Path(folder) / "crash.log", exit_timeout=5)
        manager: ServiceManager = Launchd(label=_LABEL) if MAC else Systemd(unit=f"{_LABEL}.service")
        try:
            manager.status()
        except ProviderError as error:
            raise (Failed if MAC else Skipped)(str(error)) from None
        try:
            manager.install(spec)
            _until(
                lambda: _count(runs) == 3 and manager.status().running, "it didn't come back after a crash"
            )
            manager.stop()
            _until(lambda: not manager.status().running, "it runs after it was stopped")
            if _count(runs) != 3:
                raise Failed("it was started again after it was stopped")
        finally:
            if manager.status().installed:
                manager.uninstall()
        if manager.status().installed:
            raise Failed("it is there after it was uninstalled")
    return "installed, crashed, came back, stopped, removed"


def _count(runs: Path) -> int:
    return len(runs.read_text().splitlines()) if runs.is_file() else 0


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + _SERVICE_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise Failed(otherwise)
        time.sleep(0.5)


def _forced_call(model: str | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        kept = os.environ.get(ENV_HOME)
        os.environ[ENV_HOME] = folder
        daemon = start_daemon("0", model or DEMO_MODEL)
        try:
            ready = wait_until_ready(daemon)
            if not ready.can_force:
                raise Failed(f"{ready.model} can't be held to a call here")
            return f"{ready.model}: {forced_call(ready)}"
        finally:
            end_daemon(daemon)
            os.environ.pop(ENV_HOME)
            if kept is not None:
                os.environ[ENV_HOME] = kept
