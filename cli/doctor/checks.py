"""Verdicts over facts, pure: each check is a function of what was found, with a remedy for what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

OLDEST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 2_000_000_000
# Receipts and status reports carry times; two minutes is what clocks on the Internet differ by at worst.
MOST_SKEW_SECONDS = 120.0
# Weights, their working memory and the KV cache of a few requests, against all memory of the machine.
MEMORY_FACTOR = 1.2


class Verdict(StrEnum):
    OK = "ok"
    FAILING = "failing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy`: what to type or change, `None` where nothing need be done."""

    id: str
    verdict: Verdict
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Check:
    return Check(name, Verdict.OK, detail)


def failing(name: str, detail: str, remedy: str) -> Check:
    return Check(name, Verdict.FAILING, detail, remedy)


def unknown(name: str, detail: str, remedy: str | None = None) -> Check:
    return Check(name, Verdict.UNKNOWN, detail, remedy)


def overall(checks: Sequence[Check]) -> Verdict:
    """One failing check fails the whole; else one unknown leaves it open."""
    verdicts = {check.verdict for check in checks}
    for verdict in (Verdict.FAILING, Verdict.UNKNOWN):
        if verdict in verdicts:
            return verdict
    return Verdict.OK


EXIT_CODES: Mapping[Verdict, int] = {Verdict.OK: 0, Verdict.FAILING: 1, Verdict.UNKNOWN: 3}


def check_python(version: tuple[int, int, int]) -> Check:
    shown = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        return failing(
            "python", f"Python {shown}", "install Python 3.11 or newer and make the environment again"
        )
    return ok("python", f"Python {shown}")


def check_mlx(found: Mapping[str, Any] | None, trouble: str, *, mac: bool) -> list[Check]:
    """`found`: what MLX says in a process of its own: version, mlx_lm, device, metal; `None`: it couldn't."""
    if found is None:
        remedy = "install malibu-provider again; on a Mac, in an arm64 Python (not under Rosetta)"
        return [
            failing("mlx", f"MLX can't be loaded: {trouble}", remedy),
            unknown("metal", "MLX can't be loaded"),
        ]
    mlx = ok("mlx", f"mlx {found['version']}, mlx-lm {found['mlx_lm']}")
    if not mac:
        return [mlx, ok("metal", "not on this system; models run on the CPU")]
    if not found["metal"]:
        remedy = "use an Apple silicon Mac and an arm64 Python"
        return [mlx, failing("metal", "Metal is not available to MLX", remedy)]
    return [mlx, ok("metal", f"MLX computes on {found['device']}")]


def check_blas(openblas: str | None) -> Check:
    """On Linux: without OpenBLAS all is right, only slow."""
    if openblas is None:
        return ok("blas", "no OpenBLAS: 50 to 80 times slower (apt-get install libopenblas0-pthread)")
    return ok("blas", f"OpenBLAS: {openblas}")


def check_disk(folder: str, free_bytes: int | None) -> Check:
    if free_bytes is None:
        return unknown("disk", f"can't read the free space of {folder}")
    detail = f"{free_bytes / 1e9:.1f} GB free in {folder}"
    if free_bytes < LEAST_FREE_BYTES:
        return failing("disk", detail, "free some space; `malibu-provider models remove ID` deletes a model")
    return ok("disk", detail)


def check_memory(weights: Mapping[str, int], memory_bytes: int) -> Check:
    """`weights`: model → bytes of its weights; the largest must fit."""
    if not weights:
        return unknown("memory", "no configured model is on this machine yet")
    model, size = max(weights.items(), key=lambda item: item[1])
    detail = f"{model}: {size / 1e9:.1f} GB of weights, {memory_bytes / 1e9:.1f} GB of memory"
    if size * MEMORY_FACTOR > memory_bytes:
        return failing("memory", detail, "choose a smaller model or a stronger quantisation")
    return ok("memory", detail)


def check_private(name: str, file: str, mode: int | None) -> Check:
    """A file that holds a secret: `mode` its permission bits, `None` when it isn't there."""
    if mode is None:
        return ok(name, f"{file} isn't there (yet)")
    if mode & 0o077:
        return failing(name, f"{file} can be read by others (mode {mode:03o})", f"chmod 600 '{file}'")
    return ok(name, f"{file} is private")


def check_clock(skew_seconds: float | None) -> Check:
    if skew_seconds is None:
        return unknown("clock", "the gateway didn't tell its time")
    detail = f"{abs(skew_seconds):.0f} s {'ahead of' if skew_seconds > 0 else 'behind'} the gateway"
    if abs(skew_seconds) > MOST_SKEW_SECONDS:
        return failing("clock", detail, "let the system set its clock by itself")
    return ok("clock", detail)


def check_gateway(origin: str, trouble: str | None) -> Check:
    if trouble is not None:
        return failing("gateway", f"{origin}: {trouble}", "check the network and gateway.url")
    return ok("gateway", f"{origin} answers")


def check_port(port: int, *, taken: bool, ours: bool) -> Check:
    """`taken`: something listens there; `ours`: it is the running daemon."""
    if taken and not ours:
        return failing(
            "port", f"port {port} is taken by another program", "choose another local_gateway.port"
        )
    return ok("port", f"port {port} is {'ours' if ours else 'free'}")


def check_daemon(status: Mapping[str, Any] | None, *, running: bool) -> list[Check]:
    """Process, registered, routable: from the status document, `None` when there is none."""
    start = "malibu-provider start, or malibu-provider service start"
    if not running:
        nothing = "no daemon runs"
        return [
            unknown("process", nothing, start),
            unknown("registered", nothing),
            unknown("routable", nothing),
        ]
    if status is None:
        remedy = "malibu-provider stop; if that hangs, end its process"
        return [
            failing("process", "the daemon doesn't answer", remedy),
            unknown("registered", "the daemon doesn't answer"),
            unknown("routable", "the daemon doesn't answer"),
        ]
    process, link = status["process"], status.get("link") or {}
    if process["state"] == "idle":
        process_check = failing("process", f"idle: {process['reason']}", "mend that; the daemon then goes on")
    else:
        process_check = ok("process", f"{process['state']}, PID {process['pid']}")
    return [process_check, _registered(link), _routable(link)]


def _registered(link: Mapping[str, Any]) -> Check:
    if link.get("registered"):
        return ok("registered", f"with {link['gateway']}")
    why = link.get("last_error") or link.get("stage") or "not connected"
    return failing("registered", str(why), "look at the gateway check and at `malibu-provider logs`")


def _routable(link: Mapping[str, Any]) -> Check:
    if link.get("routable"):
        return ok("routable", "the gateway sends jobs here")
    reasons = ", ".join(link.get("reasons") or []) or "not registered"
    return failing("routable", f"no jobs: {reasons}", "docs/operations.md says what each reason asks for")


def check_service(*, installed: bool, running: bool, last_exit: int | None, other: str | None) -> Check:
    """`other`: another service of this product, in words."""
    if other and installed:
        remedy = "keep one: malibu-provider service uninstall, or brew services stop malibu-provider"
        return failing("service", f"installed, and so is {other}: two would take turns", remedy)
    if not installed:
        return ok("service", f"{other} is installed" if other else "not installed")
    if running:
        return ok("service", "installed and running")
    if last_exit:
        remedy = "malibu-provider logs, then malibu-provider service start"
        return failing("service", f"its last run ended with {last_exit}", remedy)
    return ok("service", "installed, stopped")
