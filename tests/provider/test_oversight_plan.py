"""Each key of the sections that govern what goes on beside serving changes what is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.families import Family
from provider.app import oversight_plan
from provider.config import MetricsSection, PolicySection, Settings, StatusSection
from provider.engine.spec import ModelSpec
from provider.oversight import OversightPlan
from provider.system.facts import Condition, Hardware
from provider.system.paths import Paths

MODELS = (ModelSpec("m", Family.NONE, context_length=1000, max_output_tokens=100),)


class Desk:
    """A machine that tells everything."""

    def condition(self) -> Condition:
        return Condition(True, 81, True, "serious", "critical", 7.5, 10**9)

    def hardware(self) -> Hardware:
        return Hardware("Apple M2", 16 * 2**30, 10, "macOS 15.1")


def plan(folder: Path, section: str = "policy", *, local: bool = False, **values: Any) -> OversightPlan:
    settings = Settings.model_validate({section: values})
    paths = Paths(folder, folder / "config.toml", folder / "cache", folder / "logs")
    return oversight_plan(settings, paths, Desk(), MODELS, local=local)


POLICY: dict[str, Any] = {
    "windows": ["Mon-Fri 22:00-07:00"],
    "keep_awake": False,
    "on_battery": True,
    "low_power": True,
    "thermal": "off",
    "memory": "serious",
    "user_idle_seconds": 300,
    "free_disk_gb": 5,
}
STATUS = {"enabled": False, "url": "https://example.org/status"}
METRICS = {"port": 9108}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        *(("policy", key, value) for key, value in POLICY.items()),
        *(("status", key, value) for key, value in STATUS.items()),
        *(("metrics", key, value) for key, value in METRICS.items()),
        ("engine", "measure_at_start", False),
        ("drain", "seconds", 5),
    ],
)
def test_a_key_changes_the_plan(tmp_path: Path, section: str, key: str, value: Any) -> None:
    def comparable(found: OversightPlan) -> dict[str, Any]:
        return {name: getattr(found, name) for name in found.__slots__ if name != "read"}

    assert comparable(plan(tmp_path, section, **{key: value})) != comparable(plan(tmp_path, section))


def test_no_key_of_these_sections_is_left_out() -> None:
    assert set(POLICY) == set(PolicySection.model_fields)
    assert set(STATUS) == set(StatusSection.model_fields)
    assert set(METRICS) == set(MetricsSection.model_fields)


def test_who_asks_for_answers_himself_may_be_on_battery(tmp_path: Path) -> None:
    rules = plan(tmp_path, local=True).policy
    assert (rules.serve_on_battery, rules.serve_in_low_power) == (True, True)
    rules = plan(tmp_path).policy
    assert (rules.serve_on_battery, rules.serve_in_low_power) == (False, False)
    rules = plan(tmp_path, local=True, on_battery=False, low_power=False).policy
    assert (rules.serve_on_battery, rules.serve_in_low_power) == (False, False)


@pytest.mark.asyncio
async def test_the_machines_facts_reach_the_rules(tmp_path: Path) -> None:
    facts = await plan(tmp_path).read()
    assert (facts.on_battery, facts.battery_percent, facts.low_power) == (True, 81, True)
    assert (facts.thermal, facts.memory_pressure) == ("serious", "critical")
    assert (facts.user_idle_seconds, facts.free_disk_bytes) == (7.5, 10**9)
