"""What the gateway remembers: in memory and in SQLite, over restarts, crashes and full disks."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
import sqlite3
import stat
from collections import Counter
from pathlib import Path

import aiohttp
import psutil
import pytest

from gateway_protocol.messages import Usage
from gateway_protocol.signing import ProviderKey
from provider.local_gateway.ledger import JobEntry, Ledger, MemoryLedger
from provider.local_gateway.ledger_file import MIGRATIONS, LedgerError, LedgerFile, usage_of
from provider.local_gateway.server import GatewayConfigError, create_gateway
from provider.local_gateway.settings import GatewaySettings
from provider.local_gateway.sqlite_ledger import SqliteLedger
from tests.cli.processes import free_port
from tests.fakes.fake_provider import FakeJob, FakeProvider, answering
from tests.fakes.gateway_process import GatewayProcess
from tests.provider.local_gateway.conftest import StartGateway, Stream, chat, eventually, refusal, stream

SECRET = b"s" * 32
ENTRY = JobEntry(
    job_id="job_1",
    attempt=1,
    key_id="key_a",
    model="m",
    provider_id="prov_a",
    terminal="completed",
    finish_reason="stop",
    error=None,
    usage=Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=2, reasoning_tokens=1),
    receipt="a.b.c",
    created_ms=1_769_860_000_000,
    ended_ms=1_769_860_001_000,  # 2026-01-31
)


async def kept(ledger: Ledger, entry: JobEntry) -> None:
    future = ledger.record(entry)
    if future is not None:
        await future


@pytest.mark.asyncio
async def test_both_ledgers_answer_alike(tmp_path: Path) -> None:
    for ledger in (MemoryLedger(), SqliteLedger(tmp_path / "state" / "gateway.db", SECRET)):
        other = dataclasses.replace(ENTRY, job_id="job_2", usage=None, terminal="failed", error="x")
        await kept(ledger, ENTRY)
        await kept(ledger, other)
        assert list(ledger.recent(5)) == [other, ENTRY]
        assert list(ledger.recent(1)) == [other]
        ledger.pin("prov_a", "key-1")
        ledger.pin("prov_b", "key-2")
        ledger.pin("prov_a", "key-3")
        assert (ledger.pinned("prov_a"), ledger.pinned("prov_x")) == ("key-3", None)
        assert ledger.all() == ["key-1", "key-2", "key-3"]
        assert not ledger.full
        await ledger.aclose()


@pytest.mark.asyncio
async def test_everything_is_there_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    ledger = SqliteLedger(path, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ledger.secret == SECRET
    await kept(ledger, ENTRY)
    ledger.pin("prov_a", "key-1")
    ledger.pin("prov_a", "key-2")
    await ledger.aclose()
    ledger = SqliteLedger(path, b"other" * 8)
    assert list(ledger.recent(9)) == [ENTRY]
    assert ledger.pinned("prov_a") == "key-2"
    assert ledger.all() == ["key-1", "key-2"]
    assert ledger.secret == SECRET
    await ledger.aclose()


@pytest.mark.asyncio
async def test_an_attempt_is_counted_once_and_sums_are_by_day_key_and_model(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "gateway.db", SECRET)
    tomorrow = ENTRY.ended_ms + 86_400_000
    for entry in (
        ENTRY,
        ENTRY,
        dataclasses.replace(ENTRY, attempt=2),
        dataclasses.replace(ENTRY, job_id="job_2", ended_ms=tomorrow),
        dataclasses.replace(ENTRY, job_id="job_3", key_id="key_b"),
        dataclasses.replace(ENTRY, job_id="job_4", usage=None),
    ):
        await kept(ledger, entry)
    sums = [
        (row.day, row.key_id, row.model, row.jobs, row.prompt_tokens, row.completion_tokens)
        for row in ledger.usage()
    ]
    assert sums == [
        ("2026-01-31", "key_a", "m", 2, 20, 10),
        ("2026-01-31", "key_b", "m", 1, 10, 5),
        ("2026-02-01", "key_a", "m", 1, 10, 5),
    ]
    await ledger.aclose()


@pytest.mark.parametrize("version", [None, 99])
def test_a_file_that_cannot_be_used_is_let_go(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "gateway.db"
    if version is None:
        path.write_bytes(b"no database " * 1000)
    else:
        with sqlite3.connect(path) as database:
            database.execute(f"PRAGMA user_version = {version}")
        database.close()
    before = psutil.Process().open_files()
    kept = None
    try:
        LedgerFile(path)
    except LedgerError as error:
        kept = error  # as a daemon that tells it keeps it
    assert kept is not None
    assert psutil.Process().open_files() == before


@pytest.mark.asyncio
async def test_entries_of_three_months_ago_go_also_while_it_runs(tmp_path: Path) -> None:
    path, day_ms = tmp_path / "gateway.db", 86_400_000
    ledger = SqliteLedger(path, SECRET)
    for day in (0, 1, 90, 91):
        entry = dataclasses.replace(ENTRY, job_id=f"job_{day}", ended_ms=ENTRY.ended_ms + day * day_ms)
        await kept(ledger, entry)
    database = sqlite3.connect(path)
    found = {job_id for (job_id,) in database.execute("SELECT job_id FROM jobs")}
    database.close()
    assert found == {"job_1", "job_90", "job_91"}
    assert sum(row.jobs for row in ledger.usage()) == 4
    await ledger.aclose()


@pytest.mark.asyncio
async def test_what_a_file_cannot_hold_fails_alone(tmp_path: Path) -> None:
    """A writer that ended of it would leave every later buyer without an ending."""
    ledger = SqliteLedger(tmp_path / "gateway.db", SECRET)
    with pytest.raises(UnicodeEncodeError):
        await asyncio.wait_for(kept(ledger, dataclasses.replace(ENTRY, provider_id="\ud800")), 30)
    await asyncio.wait_for(kept(ledger, ENTRY), 30)
    assert list(ledger.recent(9)) == [ENTRY]
    assert not ledger.full
    await ledger.aclose()


def pinned_in(path: Path) -> set[str]:
    file = LedgerFile(path)
    try:
        return {public_key for public_key, _ in file.pins()}
    finally:
        file.close()


@pytest.mark.asyncio
async def test_a_full_disk_keeps_what_is_there_and_refuses_new_jobs(
    tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    path = tmp_path / "gateway.db"
    gateway = await start_gateway(state_file=path)
    ledger = gateway.ledger
    assert isinstance(ledger, SqliteLedger)
    async with FakeProvider(gateway.link_url):
        assert (await stream(http, gateway)).finish_reasons == ["stop"]
        (pages,) = ledger._file._database.execute("PRAGMA page_count").fetchone()
        ledger._file._database.execute(f"PRAGMA max_page_count = {pages}")
        failed = None
        while failed is None:  # until the last page is full
            failed = (await stream(http, gateway)).error
        assert failed["retryable"]
        got = await refusal(http, gateway, chat())
        assert (got.status, got.error["code"]) == (503, "no_provider_available")
        before = sum(row.jobs for row in usage_of(path))
        async with FakeProvider(gateway.link_url) as late:
            assert late.registered
        assert late.key.public_key not in pinned_in(path)
        ledger._file._database.execute(f"PRAGMA max_page_count = {pages + 1000}")
        await eventually(lambda: not ledger.full)
        assert (await stream(http, gateway)).finish_reasons == ["stop"]
        assert sum(row.jobs for row in usage_of(path)) == before + 1
    # A key that was pinned meanwhile is written down once it can be: a restart must not forget it.
    assert late.key.public_key in pinned_in(path)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    path.write_text("something else entirely, and long enough to be looked at as a header")
    with pytest.raises(LedgerError, match=r"gateway\.db"):
        LedgerFile(path)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(LedgerError, match="newer version"):
        LedgerFile(newer)
    with pytest.raises(LedgerError, match="no state file"):
        usage_of(tmp_path / "none.db")


@pytest.mark.asyncio
async def test_a_gateway_with_a_broken_state_file_does_not_start(tmp_path: Path) -> None:
    gateway = create_gateway(GatewaySettings(port=0, state_file=tmp_path))
    with pytest.raises(GatewayConfigError, match="state file"):
        await gateway.start()


@pytest.mark.asyncio
async def test_pins_usage_and_tenants_outlive_the_gateway(
    tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    path = tmp_path / "gateway.db"
    first = await start_gateway(state_file=path)
    async with FakeProvider(first.link_url, behave=answering("a", "b")) as provider:
        assert (await stream(http, first)).done
        identity = {"provider_id": provider.provider_id}
    await first.aclose()
    second = await start_gateway(state_file=path)
    async with FakeProvider(second.link_url, key=ProviderKey.generate(), **identity) as other:  # type: ignore[arg-type]
        assert other.refused is not None
    assert [(row.key_id, row.jobs, row.completion_tokens) for row in usage_of(path)] == [("local", 1, 3)]
    (entry,) = second.ledger.recent(5)
    assert entry.receipt
    assert entry.provider_id == provider.provider_id


@pytest.mark.asyncio
async def test_a_cancelled_job_costs_what_it_cost(
    tmp_path: Path, start_gateway: StartGateway, http: aiohttp.ClientSession
) -> None:
    gateway = await start_gateway(state_file=tmp_path / "gateway.db")

    async def behave(job: FakeJob) -> None:
        await job.accept()
        await job.begin()
        await job.text("x")
        await job.until_cancelled()

    async with FakeProvider(gateway.link_url, behave=behave) as provider:
        url = f"{gateway.url}/v1/chat/completions"
        async with http.post(url, json=chat(stream=True)) as response:
            await response.content.readuntil(b'"x"')
            await provider.until(lambda: bool(provider.acknowledged))
        await eventually(lambda: bool(gateway.ledger.recent(1)))
    (entry,) = gateway.ledger.recent(5)
    assert (entry.terminal, entry.usage and entry.usage.completion_tokens) == ("cancelled", 2)
    assert entry.receipt


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(600)
async def test_kill_dash_nine_loses_no_answer_that_a_buyer_got_whole(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    kills, buyers = 50, 8
    path = tmp_path / "gateway.db"
    process = GatewayProcess(port=free_port(), state_file=str(path))
    await process.start()
    provider = FakeProvider("", behave=answering("a", "b", "c"), slots=buyers)
    serving = asyncio.create_task(process.keep_serving(provider))
    whole: list[str] = []
    stop = asyncio.Event()

    async def buy() -> None:
        while not stop.is_set():
            try:
                url = f"{process.url}/v1/chat/completions"
                async with http.post(url, json=chat(stream=True)) as response:
                    raw = await response.read()
                    if response.status == 200 and b"[DONE]" in raw:
                        got = Stream(raw)
                        if got.finish_reasons:
                            whole.append(got.events[0]["id"].removeprefix("chatcmpl-"))
                    else:
                        await asyncio.sleep(0.01)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.01)

    buying = [asyncio.create_task(buy()) for _ in range(buyers)]
    chance = random.Random(7)
    for _ in range(kills):
        served = len(whole)
        async with asyncio.timeout(60):
            while len(whole) < served + 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(chance.random() * 0.05)
        await process.end(signal.SIGKILL)
        await process.start()
    stop.set()
    await asyncio.gather(*buying)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await provider.hang_up()
    await process.end(signal.SIGTERM)
    database = sqlite3.connect(path)
    rows = database.execute("SELECT job_id FROM jobs WHERE terminal = 'completed'").fetchall()
    (counted,) = database.execute("SELECT sum(jobs) FROM usage").fetchone()
    database.close()
    recorded = Counter(job_id.removeprefix("job_") for (job_id,) in rows)
    assert len(whole) >= 5 * kills
    assert {job for job in whole if recorded[job] != 1} == set()
    assert counted == sum(recorded.values())
