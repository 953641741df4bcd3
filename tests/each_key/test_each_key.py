"""Each key of the configuration, written into the file, changes what can be seen from outside."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog

from provider import app
from provider.config import known_keys
from provider.local_gateway.api_keys import add_key
from provider.models.catalogue import catalogue
from tests.cli.processes import free_port
from tests.each_key import at_the_daemon as daemon
from tests.each_key import at_the_gateway as gateway
from tests.each_key.at_the_daemon import MODEL, TINY, scripts
from tests.each_key.at_the_machine import StandIn, reason
from tests.each_key.installation import Installation
from tests.provider.link.test_connection import self_signed

Look = Callable[[Installation], Awaitable[Any]]

# What the default does shows only after longer than a test may wait, minutes or never.
NOT_IN_A_TEST = object()
PORT = free_port()
AWAY = {"gateway.url": "ws://127.0.0.1:9"}
MLX = {"engine.kind": "mlx", "engine.models": [f"{TINY.name}={TINY}"], "engine.measure_at_start": False}
LISTED = next(iter(catalogue()))


def _closed_now() -> str:
    """A window that is hours away."""
    hour = time.localtime().tm_hour
    return f"Daily {(hour + 4) % 24:02}:00-{(hour + 5) % 24:02}:00"


@dataclass(frozen=True)
class Row:
    """`look` sees `before` with the key's default and `after` with `value`; `at`: the part of it that tells.

    `company`: keys that hold in both cases. `{name}` in a value is a file that the test makes.
    """

    value: Any
    look: Look
    before: Any
    after: Any
    at: str | None = None
    company: dict[str, Any] = field(default_factory=dict)
    slow: bool = False


def registers(value: Any, at: str, before: Any, after: Any, **more: Any) -> Row:
    return Row(value, daemon.registration, before, after, at, AWAY | more)


def serves(value: Any, at: str, before: Any, after: Any) -> Row:
    return Row(value, daemon.owners_view, before, after, at)


def answers(value: Any, at: str, before: Any, after: Any) -> Row:
    return Row(value, daemon.answer, before, after, at)


def meets(value: Any, at: str, before: Any, after: Any) -> Row:
    """The provider at the local gateway."""
    return Row(value, gateway.provider, before, after, at)


def buys(value: Any, at: str, before: int, after: int, **company: Any) -> Row:
    return Row(value, gateway.buyer, before, after, at, company)


def rests(value: Any, before: str | None, after: str | None, **condition: Any) -> Row:
    return Row(value, reason(**condition), before, after)


async def _at_port(it: Installation) -> bool:
    return await gateway.port_is_the_configured_one(it, PORT)


async def _lists_mine(it: Installation) -> bool:
    return "/models/mine" in await daemon.listed(it)


ROWS: dict[str, Row] = {
    "contract": registers("strict", "contract", "malibu", "strict"),
    "gateway.url": Row(
        "ws://127.0.0.1:9/elsewhere", daemon.registration, "/v1/provider", "/elsewhere", "path", AWAY
    ),
    "gateway.token_file": registers("{token}", "token", None, "Bearer a-token"),
    "gateway.allow_insecure": Row(
        True, daemon.accepted, False, True, company={"gateway.url": "ws://gateway.example"}
    ),
    "gateway.refused_retry_seconds": Row(1, daemon.asked_again, NOT_IN_A_TEST, True, company=AWAY),
    "engine.kind": Row(
        "mlx",
        daemon.outcome,
        "Hello",
        f"{MODEL}: there is no folder /nowhere",
        company={"engine.models": [f"{MODEL}=/nowhere"]},
    ),
    "engine.models": registers(["other-model"], "models", [MODEL], ["other-model"]),
    "engine.script": answers("{other}", "text", "Hello", "Good evening"),
    "engine.slots": registers(3, "slots", 8, 3),
    "engine.memory_gb": Row(1.5, daemon.memory_limit, NOT_IN_A_TEST, 1_500_000_000, company=MLX),
    "engine.prompt_cache_gb": Row(0, daemon.cached, True, False, company=MLX),
    "engine.idle_unload_minutes": Row(0.001, daemon.unloaded, NOT_IN_A_TEST, True, company=MLX),
    "engine.measure_at_start": Row(True, daemon.measured, NOT_IN_A_TEST, True, company=MLX, slow=True),
    "model.<id>.path": Row("/models/mine", _lists_mine, False, True),
    "model.<id>.tool_parser": registers("llama", "model.family", "qwen", "llama"),
    "model.<id>.context_length": registers(4096, "model.context_length", 32_768, 4096),
    "model.<id>.max_output_tokens": registers(77, "model.max_output_tokens", 32_768, 77),
    "model.<id>.revision": registers("abc", "model.revision", None, "abc"),
    "tools.streaming": answers("incremental", "pieces", False, True),
    "tools.force": buys(False, "forced", 200, 400, contract="strict"),
    "tools.parallel_when_omitted": answers("all", "calls", 1, 2),
    "limits.messages": buys(1, "two messages", 200, 400),
    "queue.seconds": Row(
        0, daemon.second_job, "completed", "provider_overloaded", company=AWAY | {"engine.slots": 1}
    ),
    "dispatch.queue_seconds": Row(0, gateway.second_answer, "in line", "refused with 503"),
    "dispatch.queue_length": Row(0, gateway.second_answer, "in line", "refused with 503"),
    "dispatch.first_content_seconds": meets(2, "first content", None, 2_000),
    "dispatch.deadline_seconds": meets(5, "deadline", 600_000, 5_000),
    "dispatch.resume_seconds": meets(7, "resume", 60_000, 7_000),
    "drain.seconds": Row(5, daemon.drain, 30_000, 5_000, company=AWAY),
    "local_gateway.host": Row(
        "0.0.0.0",
        gateway.address,
        "http 127.0.0.1",
        "without API keys only a loopback address may be bound, not 0.0.0.0",
    ),
    "local_gateway.port": Row(PORT, _at_port, False, True),
    "local_gateway.keys_file": buys("{keys}", "plain", 200, 401),
    "local_gateway.provider_tokens_file": meets("{token}", "refused", None, "token_refused"),
    "local_gateway.provider_keys": meets(["another"], "refused", None, "key_not_allowed"),
    "local_gateway.minimum_version": meets("9.0", "reasons", [], ["below_minimum_version"]),
    "local_gateway.recommended_version": meets("9.0", "told version", None, "9.0"),
    "local_gateway.hosts": buys(["mac.local"], "other name", 403, 200),
    "local_gateway.origins": buys(["https://chat.example.org"], "other page", 403, 200),
    "local_gateway.tls_cert": Row(
        {"tls_cert": "{certificate}", "tls_key": "{key}"},
        gateway.address,
        "http 127.0.0.1",
        "https 127.0.0.1",
    ),
    "local_gateway.tls_key": Row(
        "{other_key}",
        gateway.address,
        "https 127.0.0.1",
        "can't use {certificate} and {other_key}",
        company={"local_gateway.tls_cert": "{certificate}", "local_gateway.tls_key": "{key}"},
    ),
    "local_gateway.requests_per_minute": buys(1, "again", 200, 429),
    "local_gateway.streams_per_key": Row(1, gateway.second_answer, "in line", "refused with 429"),
    "policy.windows": rests([_closed_now()], None, "outside_schedule"),
    "policy.keep_awake": Row(False, daemon.kept_awake, True, False),
    "policy.on_battery": rests(True, "on_battery", None, on_battery=True),
    "policy.low_power": rests(True, "low_power_mode", None, low_power=True),
    "policy.thermal": rests("off", "thermal_pressure", None, thermal="critical"),
    "policy.memory": rests("fair", None, "memory_pressure", memory_pressure="fair"),
    "policy.user_idle_seconds": rests(60, None, "user_active", user_idle_seconds=3.0),
    "policy.free_disk_gb": rests(5, None, "disk_nearly_full", free_disk_bytes=2 * 10**9),
    "metrics.port": serves(free_port(), "metrics", None, "text/plain"),
    "status.enabled": serves(False, "reports", True, False),
    "status.url": serves("http://127.0.0.1:9", "reports to", "its own gateway", "http://127.0.0.1:9"),
    "log.level": serves("error", "says what it does", True, False),
    "log.format": serves("console", "in JSON", True, False),
}

_seen: dict[Any, Any] = {}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A desktop that has nothing against serving; logging as it was, afterwards."""
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(app, "this_machine", lambda disk: StandIn())
    yield tmp_path
    structlog.reset_defaults()


@pytest.fixture
def files(home: Path) -> dict[str, str]:
    """By the names that stand for them in the table."""
    (home / "token").write_text("a-token\n")
    add_key(home / "keys.toml", "someone", created="2026-01-01T00:00:00Z")
    certificate, key = self_signed(home)
    (home / "stranger").mkdir()
    _, other_key = self_signed(home / "stranger")
    made = {"token": home / "token", "keys": home / "keys.toml", "other": home / "other.jsonl"}
    made |= {"certificate": certificate, "key": key, "other_key": other_key}
    return {name: str(file) for name, file in made.items()}


def test_the_table_names_every_key() -> None:
    assert list(ROWS) == known_keys()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=[pytest.mark.slow, pytest.mark.timeout(300)] if row.slow else [])
        for key, row in ROWS.items()
    ],
)
async def test_each_key_changes_what_is_seen(home: Path, files: dict[str, str], key: str) -> None:
    row = ROWS[key]

    def filled(value: Any) -> Any:
        for name, file in files.items():
            value = value.replace(f"{{{name}}}", file) if isinstance(value, str) else value
        return value

    async def seen(changes: dict[str, Any]) -> Any:
        keys = {"local_gateway.port": 0, **scripts(home), **row.company, **changes}
        shutil.rmtree(home / "home", ignore_errors=True)
        return await row.look(
            Installation(home / "home", {key: filled(value) for key, value in keys.items()})
        )

    def part(found: Any) -> Any:
        return found if row.at is None else found.get(row.at)

    name = key.replace("<id>", LISTED if row.look is _lists_mine else MODEL)
    section = key.rpartition(".")[0]
    changes = (
        {f"{section}.{each}": value for each, value in row.value.items()}
        if isinstance(row.value, dict)
        else {name: row.value}
    )
    if row.before is not NOT_IN_A_TEST:
        usual = (row.look, str(sorted(row.company)))
        if usual not in _seen:
            _seen[usual] = await seen({})
        assert part(_seen[usual]) == filled(row.before)
    assert part(await seen(changes)) == filled(row.after)
