"""Prometheus metrics, read from status document and sums at each scrape: serving pays nothing for them.

Every label is from a closed set or names a model that is served here. `configs/alerts.yml` and
`configs/grafana-dashboard.json` are built on these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from provider.jobs.ends import Histogram
from provider.status.tally import JobTally

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "malibu_provider_"
_LEVELS: Mapping[str, int] = {"nominal": 0, "fair": 1, "serious": 2, "critical": 3}

Document = Mapping[str, Any]
# The values of the labels, in their order → the sample.
Samples = Mapping[Any, float]


class Metrics(Collector):
    """`document`: the status document at this moment. `tally`, `token_gaps`: sums that jobs add to."""

    def __init__(
        self,
        document: Callable[[], Document],
        tally: Callable[[], JobTally | None],
        token_gaps: Callable[[], Histogram | None],
    ) -> None:
        self._document = document
        self._tally = tally
        self._token_gaps = token_gaps
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """What a scrape answers, in the text format `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        document = self._document()
        yield from _process(document["process"])
        yield from _policy(document)
        if document["engine"] is not None:
            yield from _engine(document["engine"])
        if document["link"] is not None:
            yield from _link(document["link"])
        if document["jobs"] is not None:
            yield from _jobs_now(document["jobs"])
        tally, gaps = self._tally(), self._token_gaps()
        if tally is not None:
            yield from _ended_jobs(tally)
        if gaps is not None:
            yield _histogram("inter_token_seconds", "Time between two tokens of one answer.", gaps)


def _process(process: Document) -> Iterator[Metric]:
    about = (process["version"], process["contract"] or "")
    yield _gauge("info", "The running daemon; always 1.", {about: 1}, "version", "contract")
    yield _gauge("uptime_seconds", "Time since the daemon started.", {(): process["uptime_s"]})
    states = {(state,): float(process["state"] == state) for state in _PROCESS_STATES}
    yield _gauge("process_state", "1 for the state the daemon is in.", states, "state")


_PROCESS_STATES = ("starting", "serving", "draining", "idle")


def _policy(document: Document) -> Iterator[Metric]:
    policy, machine, reports = document["policy"], document["machine"], document["reports"]
    if policy is not None:
        reasons = {(pause["reason"],): 1.0 for pause in policy["pauses"]}
        yield _gauge("paused", "1 while the machine's rules or its owner say no.", {(): policy["paused"]})
        yield _gauge("pause_reason", "1 for each reason of a pause.", reasons, "reason")
    if machine is not None:
        yield from _machine(machine)
    if reports is not None:
        sent = {("sent",): reports["sent"], ("failed",): reports["failed"]}
        yield _counter("status_reports", "Status reports to the gateway.", sent, "result")


def _machine(machine: Document) -> Iterator[Metric]:
    """A fact that this system doesn't tell has no sample."""
    gauges: tuple[tuple[str, str, float | None], ...] = (
        ("on_battery", "1 when the machine runs on battery.", machine["on_battery"]),
        ("battery_percent", "Charge of the battery.", machine["battery_percent"]),
        ("low_power_mode", "1 in low power mode.", machine["low_power"]),
        ("thermal_level", "0 nominal, 1 fair, 2 serious, 3 critical.", _level(machine["thermal"])),
        ("memory_pressure_level", "0 nominal to 3 critical.", _level(machine["memory_pressure"])),
        ("free_disk_bytes", "Free space where the state is kept.", machine["free_disk_bytes"]),
    )
    for name, text, value in gauges:
        yield _gauge(name, text, {} if value is None else {(): value})


def _level(word: str | None) -> float | None:
    return None if word is None else _LEVELS.get(word)


def _engine(engine: Document) -> Iterator[Metric]:
    memory = {(kind,): engine["memory"][f"{kind}_bytes"] for kind in ("active", "cache", "limit")}
    slots = {("total",): engine["slots_total"], ("free",): engine["slots_free"]}
    yield _gauge("engine_ready", "1 when the engine can take a job.", {(): engine["ready"]})
    yield _gauge("engine_memory_bytes", "Memory of the engine, by kind.", memory, "kind")
    yield _gauge("slots", "Requests generated at once, in all and free.", slots, "state")
    yield _gauge("engine_queued", "Requests that wait for a slot.", {(): engine["queued"]})
    yield _counter("engine_restarts", "Times the engine's process died.", {(): engine["restarts"]})
    yield _counter("generated_tokens", "Tokens sampled, of all jobs.", {(): engine["generated_tokens"]})


def _link(link: Document) -> Iterator[Metric]:
    stages = {(stage,): float(link["stage"] == stage) for stage in _STAGES}
    reasons = {(reason,): 1.0 for reason in link["reasons"]}
    yield _gauge("link_stage", "1 for the stage the link is in.", stages, "stage")
    yield _gauge("link_registered", "1 while the gateway knows this provider.", {(): link["registered"]})
    yield _gauge("link_routable", "1 while the gateway sends jobs here.", {(): link["routable"]})
    yield _gauge("link_not_routable_reason", "1 for each reason it sends none.", reasons, "reason")
    yield _counter("links", "Links that were registered.", {(): link["links"]})
    yield _counter("link_attempts", "Attempts to reach the gateway.", {(): link["attempts"]})


_STAGES = ("idle", "dialling", "registering", "registered", "waiting", "stopped")


def _jobs_now(jobs: Document) -> Iterator[Metric]:
    states = {(state,): jobs[state] for state in ("offered", "queued", "running", "settling")}
    yield _gauge("jobs", "Jobs at this moment, by state.", states, "state")
    yield _gauge("outbox_bytes", "Kept until the gateway has it.", {(): jobs["outbox_bytes"]})


def _ended_jobs(tally: JobTally) -> Iterator[Metric]:
    ends = {(model, kind.value): count for (model, kind), count in tally.jobs.items()}
    codes = {(code,): count for code, count in tally.codes.items()}
    yield _counter("jobs_ended", "Jobs, by how they ended.", ends, "model", "end")
    yield _counter("job_errors", "Failed and rejected jobs, by error code.", codes, "code")
    yield _counter("tokens", "Tokens of ended jobs.", tally.tokens, "model", "kind")
    yield _counter("prompt_cache_lookups", "Jobs whose prompt was counted.", {(): tally.admitted})
    yield _counter("prompt_cache_hits", "Jobs that found a part cached.", {(): tally.cache_hits})
    yield _histogram("ttft_seconds", "From the offer to the first token.", tally.ttft)
    yield _histogram("job_seconds", "From the offer to the end of a completed job.", tally.duration)


def _gauge(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels)
    for values, sample in samples.items():
        family.add_metric(values, float(sample))
    return family


def _counter(name: str, text: str, samples: Samples, *labels: str) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, sample in samples.items():
        family.add_metric(values, float(sample))
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    cumulative = accumulate(histogram.counts)
    family = HistogramMetricFamily(_PREFIX + name, text)
    family.add_metric((), list(zip(bounds, map(float, cumulative), strict=True)), histogram.total)
    return family
