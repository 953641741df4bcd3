"""Metrics as a scraper reads them, and that rules and dashboard ask only for what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway_protocol.errors import ErrorCode
from provider.jobs.ends import TOKEN_BOUNDS, EndKind, Histogram
from provider.status.metrics import CONTENT_TYPE, Metrics
from provider.status.metrics_server import MetricsServer
from provider.status.tally import JobTally
from tests.fakes.job_ends import END, REJECTED
from tests.provider.status.documents import document
from tests.provider.status.test_health import NOTHING

CONFIGS = Path(__file__).parents[3] / "configs"
PAUSED = {"paused": True, "pauses": [{"reason": "on_battery", "words": "", "until": None}]}


def metrics(tally: JobTally | None = None, gaps: Histogram | None = None, **changes: Any) -> Metrics:
    return Metrics(lambda: document(**changes), lambda: tally, lambda: gaps)


def samples(text: bytes) -> dict[str, float]:
    """Each sample by its name with its labels in order."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def full() -> bytes:
    """Everything there can be, each family with a sample."""
    tally, gaps = JobTally(["m"]), Histogram(TOKEN_BOUNDS)
    for end in (END, replace(END, kind=EndKind.FAILED, code=ErrorCode.PROVIDER_ERROR), REJECTED):
        tally.add(end)
    gaps.add(0.1, 4)
    return metrics(tally, gaps, policy=PAUSED, link__reasons=["paused_by_policy"]).text()


def test_values() -> None:
    found = samples(full())
    expected = {
        'malibu_provider_info{contract="malibu",version="0.1.0"}': 1,
        'malibu_provider_process_state{state="serving"}': 1,
        'malibu_provider_process_state{state="idle"}': 0,
        "malibu_provider_paused": 1,
        'malibu_provider_pause_reason{reason="on_battery"}': 1,
        "malibu_provider_on_battery": 0,
        "malibu_provider_battery_percent": 100,
        "malibu_provider_thermal_level": 0,
        "malibu_provider_engine_ready": 1,
        'malibu_provider_engine_memory_bytes{kind="active"}': 3e9,
        'malibu_provider_slots{state="free"}': 2,
        "malibu_provider_generated_tokens_total": 100,
        'malibu_provider_link_stage{stage="registered"}': 1,
        'malibu_provider_link_stage{stage="waiting"}': 0,
        "malibu_provider_link_routable": 1,
        'malibu_provider_link_not_routable_reason{reason="paused_by_policy"}': 1,
        'malibu_provider_jobs{state="running"}': 2,
        'malibu_provider_jobs_ended_total{end="completed",model="m"}': 1,
        'malibu_provider_jobs_ended_total{end="failed",model="m"}': 1,
        'malibu_provider_jobs_ended_total{end="rejected",model="other"}': 1,
        'malibu_provider_job_errors_total{code="provider_error"}': 1,
        'malibu_provider_tokens_total{kind="completion",model="m"}': 10,
        "malibu_provider_prompt_cache_lookups_total": 2,
        "malibu_provider_prompt_cache_hits_total": 2,
        'malibu_provider_ttft_seconds_bucket{le="0.1"}': 0,
        'malibu_provider_ttft_seconds_bucket{le="0.25"}': 2,
        'malibu_provider_ttft_seconds_bucket{le="+Inf"}': 2,
        "malibu_provider_ttft_seconds_count": 2,
        "malibu_provider_ttft_seconds_sum": 0.5,
        'malibu_provider_inter_token_seconds_bucket{le="0.02"}': 0,
        'malibu_provider_inter_token_seconds_bucket{le="0.03"}': 4,
        "malibu_provider_inter_token_seconds_sum": 0.1,
        'malibu_provider_status_reports_total{result="sent"}': 3,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_what_is_not_known_has_no_sample() -> None:
    found = samples(metrics(**NOTHING).text())
    assert {name.partition("{")[0] for name in found} == {
        "malibu_provider_info",
        "malibu_provider_uptime_seconds",
        "malibu_provider_process_state",
    }
    found = samples(metrics(machine={"thermal": None, "on_battery": None}).text())
    assert "malibu_provider_thermal_level" not in found
    assert "malibu_provider_free_disk_bytes" in found


def test_labels_are_bounded() -> None:
    tally = JobTally(["m"])
    for number in range(1000):
        tally.add(replace(END, model=f"model-{number}", job_id=f"job_{number}"))
    lines = metrics(tally).text().decode().splitlines()
    assert len(lines) < 200
    assert not any("model-" in line or "job_" in line.partition("{")[2] for line in lines)


# --- rules and dashboard ---------------------------------------------------------------------------


def exposed() -> dict[str, set[str]]:
    """Each sample's name with the labels it has."""
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(full().decode()):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def expressions() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((CONFIGS / "alerts.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((CONFIGS / "grafana-dashboard.json").read_text("utf-8"))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_only_what_is_exposed_is_asked_for(where: str, expression: str) -> None:
    there = exposed()
    asked = re.findall(r"(malibu_provider_\w+)(?:\{([^}]*)\})?", expression)
    assert asked or expression.startswith("up{")
    for name, selectors in asked:
        assert name in there, f"{where}: no metric {name}"
        labels = set(re.findall(r"(\w+)\s*[=!]", selectors)) - {"instance", "job"}
        assert labels <= there[name], f"{where}: {name} has no label {labels - there[name]}"


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    used = set(re.findall(r"malibu_provider_\w+", " ".join(expression for _, expression in expressions())))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed()}
    used = {re.sub(r"_bucket$", "", name) for name in used}
    assert families - used == {"malibu_provider_link_stage"}


def test_rules_have_what_prometheus_wants() -> None:
    rules = yaml.safe_load((CONFIGS / "alerts.yml").read_text("utf-8"))
    names = []
    for rule in rules["groups"][0]["rules"]:
        names.append(rule["alert"])
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["expr"].count("(") == rule["expr"].count(")")
    assert len(set(names)) == len(names) > 10


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads((CONFIGS / "grafana-dashboard.json").read_text("utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


# --- the port ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_scrape() -> None:
    server = MetricsServer(0, metrics().text, CONTENT_TYPE)
    await server.start()
    async with aiohttp.ClientSession() as session, session.get(server.url) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == CONTENT_TYPE
        assert "malibu_provider_link_routable" in samples(await response.read())
    await server.aclose()
    await server.aclose()


@pytest.mark.asyncio
async def test_a_page_under_another_name_reads_nothing() -> None:
    server = MetricsServer(0, metrics().text, CONTENT_TYPE)
    await server.start()
    async with aiohttp.ClientSession() as session:
        for host, status in (("evil.example", 403), ("localhost", 200), ("localhost:9108", 200)):
            async with session.get(server.url, headers={"Host": host}) as response:
                assert response.status == status
    await server.aclose()


@pytest.mark.asyncio
async def test_a_taken_port_is_told() -> None:
    first = MetricsServer(0, bytes, CONTENT_TYPE)
    await first.start()
    port = int(first.url.rpartition(":")[2].removesuffix("/metrics"))
    with pytest.raises(OSError, match="in use"):
        await MetricsServer(port, bytes, CONTENT_TYPE).start()
    await first.aclose()
