"""Each key changes behaviour: what the rooms are given differs when it is set."""

from __future__ import annotations

import ast
import dataclasses
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from provider import app
from provider.config import LoadedConfig, known_keys, load
from provider.engine.spec import EngineSettings, ModelSpec
from provider.jobs.plan import AnswerRules
from provider.link.dial import LinkSettings
from provider.local_gateway.settings import Access, Caps, GatewaySettings, Timers
from provider.oversight import OversightPlan
from provider.policy.rules import Policy
from provider.system.facts import this_machine
from provider.system.paths import Paths

MODEL = "qwen3-mine"

# A value for each key that isn't its default; where a key needs company to mean anything, the company.
CHANGES: dict[str, dict[str, Any]] = {
    "contract": {"contract": "strict"},
    "gateway.url": {"gateway.url": "wss://example.org/v1/provider"},
    "gateway.token_file": {"gateway.token_file": "{file}"},
    "gateway.allow_insecure": {"gateway.allow_insecure": True},
    "gateway.refused_retry_seconds": {"gateway.refused_retry_seconds": 5},
    "engine.kind": {"engine.kind": "scripted"},
    "engine.models": {"engine.models": ["another-model"]},
    "engine.script": {"engine.script": "{other}"},
    "engine.slots": {"engine.slots": 3},
    "engine.memory_gb": {"engine.memory_gb": 4},
    "engine.prompt_cache_gb": {"engine.prompt_cache_gb": 1},
    "engine.idle_unload_minutes": {"engine.idle_unload_minutes": 5},
    "engine.measure_at_start": {"engine.measure_at_start": False},
    "model.<id>.path": {f"model.{MODEL}.path": "/elsewhere"},
    "model.<id>.tool_parser": {f"model.{MODEL}.tool_parser": "llama"},
    "model.<id>.context_length": {f"model.{MODEL}.context_length": 4096},
    "model.<id>.max_output_tokens": {f"model.{MODEL}.max_output_tokens": 77},
    "model.<id>.revision": {f"model.{MODEL}.revision": "abc"},
    "tools.streaming": {"tools.streaming": "whole"},
    "tools.force": {"tools.force": False},
    "tools.parallel_when_omitted": {"tools.parallel_when_omitted": "all"},
    "limits.messages": {"limits.messages": 5},
    "queue.seconds": {"queue.seconds": 1},
    "dispatch.queue_seconds": {"dispatch.queue_seconds": 1},
    "dispatch.queue_length": {"dispatch.queue_length": 1},
    "dispatch.first_content_seconds": {"dispatch.first_content_seconds": 1},
    "dispatch.deadline_seconds": {"dispatch.deadline_seconds": 1},
    "dispatch.resume_seconds": {"dispatch.resume_seconds": 1},
    "drain.seconds": {"drain.seconds": 1},
    "local_gateway.host": {"local_gateway.host": "::1"},
    "local_gateway.port": {"local_gateway.port": 1},
    "local_gateway.keys_file": {"local_gateway.keys_file": "{file}"},
    "local_gateway.provider_tokens_file": {"local_gateway.provider_tokens_file": "{file}"},
    "local_gateway.provider_keys": {"local_gateway.provider_keys": ["k"]},
    "local_gateway.minimum_version": {"local_gateway.minimum_version": "2.0"},
    "local_gateway.recommended_version": {"local_gateway.recommended_version": "2.1"},
    "local_gateway.hosts": {"local_gateway.hosts": ["h"]},
    "local_gateway.origins": {"local_gateway.origins": ["https://o"]},
    "local_gateway.tls_cert": {"local_gateway.tls_cert": "{file}", "local_gateway.tls_key": "{file}"},
    "local_gateway.tls_key": {"local_gateway.tls_cert": "{file}", "local_gateway.tls_key": "{file}"},
    "local_gateway.requests_per_minute": {"local_gateway.requests_per_minute": 1},
    "local_gateway.streams_per_key": {"local_gateway.streams_per_key": 1},
    "policy.windows": {"policy.windows": ["Daily 01:00-02:00"]},
    "policy.keep_awake": {"policy.keep_awake": False},
    "policy.on_battery": {"policy.on_battery": True},
    "policy.low_power": {"policy.low_power": True},
    "policy.thermal": {"policy.thermal": "off"},
    "policy.memory": {"policy.memory": "fair"},
    "policy.user_idle_seconds": {"policy.user_idle_seconds": 60},
    "policy.free_disk_gb": {"policy.free_disk_gb": 5},
    "metrics.port": {"metrics.port": 9108},
    "status.enabled": {"status.enabled": False},
    "status.url": {"status.url": "https://example.org"},
    "log.level": {"log.level": "error"},
    "log.format": {"log.format": "console"},
}
BASE = {"engine.script": "{file}", "engine.models": [MODEL]}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in ("file", "other"):
        (tmp_path / name).write_text(f"a line of {name}\n")
    return Paths(tmp_path / "state", tmp_path / "config.toml", tmp_path / "cache", tmp_path / "logs")


def configured(paths: Paths, changes: dict[str, Any]) -> LoadedConfig:
    folder = paths.config_file.parent

    def filled(value: Any) -> Any:
        return value.format(file=folder / "file", other=folder / "other") if isinstance(value, str) else value

    flags = {key: filled(value) for key, value in {**BASE, **changes}.items()}
    return load(file=paths.config_file, file_required=False, environment={}, flags=flags)


def logged(loaded: LoadedConfig) -> str:
    """What a log line looks like under this configuration."""
    out = io.StringIO()
    app.configure_logs(loaded.settings.log.level, loaded.settings.log.format, out)
    structlog.get_logger().warning("something", count=1)
    return re.sub(r"\d", "0", out.getvalue())


def given_to_the_rooms(loaded: LoadedConfig, paths: Paths) -> list[str]:
    """Everything that reaches a room, as text; functions and objects without values are left out."""
    settings = loaded.settings
    library = app.model_library(settings, paths)
    model = library.identify(settings.engine.models[0])
    specs = (library.spec(model, None),)
    oversight = app.oversight_plan(settings, paths, this_machine(paths.state), specs, local=False)
    everything = [
        app.engine_settings(settings, specs),
        model,
        app.answer_rules(settings),
        app.link_settings(settings, local=False),
        app.gateway_settings(settings, paths),
        oversight,
        logged(loaded),
    ]
    return [
        re.sub(r"<(function|built-in|bound method)[^>]*>|0x[0-9a-f]+", "", repr(each)) for each in everything
    ]


def test_the_table_names_every_key() -> None:
    assert set(CHANGES) == set(known_keys())


@pytest.mark.parametrize("key", CHANGES)
def test_each_key_changes_what_the_rooms_are_given(paths: Paths, key: str) -> None:
    before = given_to_the_rooms(configured(paths, {}), paths)
    assert given_to_the_rooms(configured(paths, {}), paths) == before
    assert given_to_the_rooms(configured(paths, CHANGES[key]), paths) != before


def attributes_read() -> set[str]:
    """Each name that a room reads off an object, wherever it does."""
    provider = Path(app.__file__).parent
    rooms = [file for file in provider.rglob("*.py") if file.parent != provider / "config"]
    trees = [ast.parse(file.read_text("utf-8")) for file in rooms if file.name != "app.py"]
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in nodes}


def test_the_rooms_read_all_they_are_given() -> None:
    given = (
        EngineSettings,
        ModelSpec,
        AnswerRules,
        LinkSettings,
        GatewaySettings,
        Access,
        Caps,
        Timers,
        OversightPlan,
        Policy,
    )
    names = {field.name for each in given for field in dataclasses.fields(each)}
    assert names <= attributes_read()
