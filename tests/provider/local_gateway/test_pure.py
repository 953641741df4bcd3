"""The gateway's pure parts: dispatch, queue, tables, access, keys, rates, event bytes."""

from __future__ import annotations

import itertools
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway_protocol import completion
from gateway_protocol.messages import (
    Delta,
    FinishReason,
    FunctionDelta,
    NotRoutableReason,
    ProviderState,
    ToolCallDelta,
    Usage,
)
from gateway_protocol.validation import check_request
from provider.local_gateway import sse
from provider.local_gateway.access import Doorkeeper, host_name, is_loopback
from provider.local_gateway.api_keys import KeysError, KeysFile, add_key, load_keys, parse_keys, with_new_key
from provider.local_gateway.dispatch import COOLDOWN_MIN, FAILURES, Candidate, Dispatch
from provider.local_gateway.fair_queue import FairQueue
from provider.local_gateway.handshake import origins_of
from provider.local_gateway.job_state import IllegalMove, Move, Phase, Waits, transition
from provider.local_gateway.prefixes import prefix_hashes
from provider.local_gateway.providers import parse_version
from provider.local_gateway.rate import Rate
from provider.local_gateway.settings import Timers
from tests.provider.local_gateway import dispatch_simulation

# --- dispatch ------------------------------------------------------------------------------------


def dispatch_of(*candidates: Candidate) -> Dispatch:
    dispatch = Dispatch()
    for candidate in candidates:
        dispatch.put(candidate, 0.0)
    return dispatch


def provider(name: str, slots: int = 2, models: str = "m", **fields: Any) -> Candidate:
    return Candidate(name, frozenset(models.split()), slots, **fields)


def test_reserved_slots_are_not_given_twice() -> None:
    dispatch = dispatch_of(provider("a", 1), provider("b", 1))
    chosen = []
    while (choice := dispatch.choose("m", 0.0)) is not None:
        dispatch.reserve(choice, 0.0)
        chosen.append(choice)
    assert sorted(chosen) == ["a", "b"]
    dispatch.release("b", 0.0)
    assert dispatch.choose("m", 0.0) == "b"
    assert dispatch.choose("other", 0.0) is None


def test_emptier_and_faster_machines_come_first() -> None:
    dispatch = dispatch_of(provider("half", 2, in_flight=1), provider("empty", 2))
    assert dispatch.choose("m", 0.0) == "empty"
    fast, slow = provider("fast", decode_tokens_per_s=80), provider("slow", decode_tokens_per_s=20)
    dispatch = dispatch_of(fast, slow)
    assert dispatch.choose("m", 0.0) == "fast"
    dispatch.reserve("fast", 0.0)
    assert dispatch.choose("m", 0.0) == "fast"  # half of it is still more than all of the slow one


def test_excluded_and_restricted() -> None:
    dispatch = dispatch_of(*(provider(f"p{number}") for number in range(100)))
    assert dispatch.choose("m", 0.0, only={"p77"}) == "p77"
    everyone_else = {f"p{number}" for number in range(100)} - {"p5"}
    assert dispatch.choose("m", 0.0, exclude=everyone_else) == "p5"
    assert dispatch.choose("m", 0.0, only={"p5"}, exclude={"p5"}) is None


def test_a_warm_provider_is_taken_when_it_is_free() -> None:
    dispatch = dispatch_of(provider("a", 1), provider("b", 9))
    dispatch.remember([b"long"], "a")
    assert dispatch.choose("m", 0.0, prefixes=[b"longer", b"long"]) == "a"
    dispatch.reserve("a", 0.0)
    assert dispatch.choose("m", 0.0, prefixes=[b"long"]) == "b"
    dispatch.remove("a")
    assert dispatch.choose("m", 0.0, prefixes=[b"long"]) == "b"


def test_one_that_has_the_model_loaded_comes_before_one_that_would_load_it() -> None:
    cold = [
        provider(f"cold{number}", 8, decode_tokens_per_s=99, unloaded=frozenset("m")) for number in range(99)
    ]
    dispatch = dispatch_of(*cold[:50], provider("loaded", 1), *cold[50:])
    dispatch.remember([b"prefix"], "cold7")
    # What it had of the conversation went with the model.
    assert dispatch.choose("m", 0.0, prefixes=[b"prefix"]) == "loaded"
    dispatch.reserve("loaded", 0.0)
    assert dispatch.choose("m", 0.0) in {candidate.provider_id for candidate in cold}
    cold[7].unloaded = frozenset()
    dispatch.refresh("cold7", 0.0)
    assert dispatch.choose("m", 0.0) == "cold7"
    dispatch.remove("cold7")
    dispatch.release("loaded", 0.0)
    assert dispatch.choose("m", 0.0) == "loaded"
    assert dispatch.choose("m", 0.0, exclude={"loaded"}) not in ("loaded", "cold7", None)


def test_states_and_failures_bar_a_provider() -> None:
    candidate = provider("a")
    dispatch = dispatch_of(candidate)
    for state, reason in [
        (ProviderState.DRAINING, NotRoutableReason.DRAINING),
        (ProviderState.PAUSED, NotRoutableReason.PAUSED_BY_POLICY),
        (ProviderState.DEGRADED, NotRoutableReason.DEGRADED),
    ]:
        candidate.state = state
        dispatch.refresh("a", 0.0)
        assert (dispatch.choose("m", 0.0), candidate.reasons(0.0)) == (None, [reason])
        assert not dispatch.ready("m")
    candidate.state = ProviderState.BUSY
    dispatch.refresh("a", 0.0)
    assert dispatch.choose("m", 0.0) == "a"
    for _ in range(FAILURES):
        dispatch.failed("a", 10.0)
    assert candidate.reasons(10.0) == [NotRoutableReason.FAILED_RECENT_JOBS]
    dispatch.refresh("a", 10.0 + COOLDOWN_MIN)
    assert dispatch.choose("m", 10.0 + COOLDOWN_MIN) == "a"
    for _ in range(FAILURES):
        dispatch.failed("a", 100.0)
    assert candidate.cooled_until == 100.0 + 2 * COOLDOWN_MIN  # each time longer


def test_failures_far_apart_or_before_a_success_do_not_add_up() -> None:
    candidate = provider("a")
    dispatch = dispatch_of(candidate)
    for at in range(0, 1000, 100):
        dispatch.failed("a", float(at))
    assert not candidate.reasons(900.0)
    for at in range(5):
        dispatch.failed("a", 1000.0 + at)
        dispatch.succeeded("a", 1000.0 + at)
    assert not candidate.reasons(1004.0)


def test_jobs_that_die_together_are_one_failure() -> None:
    candidate = provider("a")
    dispatch = dispatch_of(candidate)
    for at in range(8):
        dispatch.failed("a", 10.0 + at / 100, offered_at=5.0)
    assert not candidate.reasons(11.0)
    dispatch.failed("a", 20.0, offered_at=12.0)
    dispatch.failed("a", 30.0, offered_at=21.0)
    assert candidate.reasons(30.0) == [NotRoutableReason.FAILED_RECENT_JOBS]


@pytest.mark.slow
def test_the_cost_of_a_dispatch_stays_flat_to_a_thousand_providers() -> None:
    run = subprocess.run(
        [sys.executable, dispatch_simulation.__file__, "--json"], capture_output=True, check=True, timeout=250
    )
    rows = json.loads(run.stdout)
    assert [row["providers"] for row in rows] == [10, 100, 1000]
    assert all(row["placed"] + row["refused"] == 10_000 for row in rows)
    cost = {row["providers"]: row["us_per_request"] for row in rows}
    assert cost[1000] < 3 * cost[100]


# --- queue ---------------------------------------------------------------------------------------


def test_keys_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "a3", "b1", "c1"):
        queue.add(item[0], item)
    queue.add("a", "a0", first=True)
    taken = [queue.take(lambda _: True) for _ in range(7)]
    assert taken == ["a0", "b1", "c1", "a1", "a2", "a3", None]


def test_what_does_not_fit_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue(3)
    for item in ("a1", "a2", "b1"):
        queue.add(item[0], item)
    assert queue.full
    assert queue.take(lambda item: item == "a2") == "a2"
    assert queue.take(lambda item: item == "zz") is None
    assert queue.remove("b", "b1")
    assert not queue.remove("b", "b1")
    assert len(queue) == 1


# --- the job's table -----------------------------------------------------------------------------


def test_before_content_a_job_can_be_given_up_and_after_it_cannot() -> None:
    for phase in Phase:
        if phase in (Phase.QUEUED, Phase.ANSWERING, Phase.ANSWERING_AWAY, Phase.ENDED):
            with pytest.raises(IllegalMove):
                transition(phase, Move.GIVEN_UP)
        else:
            assert transition(phase, Move.GIVEN_UP) is Phase.QUEUED
    for move in Move:
        with pytest.raises(IllegalMove):
            transition(Phase.ENDED, move)


def test_every_phase_runs_out() -> None:
    waits = Waits(Timers(), 30.0)
    until = {phase: waits.until(phase, since=100.0, created=90.0, first_content=140.0) for phase in Phase}
    assert until[Phase.QUEUED] == 130.0
    assert until[Phase.PREFILLING] == 140.0
    assert until[Phase.OFFERED_AWAY] == until[Phase.PREFILLING_AWAY] == 105.0
    assert until[Phase.ANSWERING_AWAY] == 160.0
    assert until[Phase.ANSWERING] == 690.0
    late = waits.until(Phase.ANSWERING_AWAY, since=680.0, created=90.0, first_content=None)
    assert late == 690.0  # within the job's deadline
    assert waits.first_content_budget(1100, 100) == 50.0
    assert Waits(Timers(first_content=3.0), 30.0).first_content_budget(1100, 100) == 3.0


# --- hosts and origins ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:8080", "localhost"),
        ("LOCALHOST", "localhost"),
        ("[::1]:8080", "::1"),
        ("mac.local.", "mac.local"),
        ("", None),
        ("a b", "a b"),
        ("a@b", None),
        ("a:port", None),
        ("a/b", None),
    ],
)
def test_host_name(host: str, name: str | None) -> None:
    assert host_name(host) == name


def test_doorkeeper() -> None:
    assert is_loopback("127.8.9.1")
    assert is_loopback("app.localhost")
    assert not is_loopback("localhost.evil.example")
    here = Doorkeeper("127.0.0.1", hosts={"mac.local"}, origins={"https://app.example"})
    assert here.host_allowed("mac.local:8080")
    assert not here.host_allowed("192.168.1.5:8080")
    assert not here.host_allowed("evil.example")
    assert not here.host_allowed(None)
    assert here.origin_allowed("https://app.example", "localhost")
    assert here.origin_allowed("https://mac.local:8080", "mac.local:8080")  # the gateway's own page
    assert not here.origin_allowed("https://mac.local:9999", "mac.local:8080")
    assert not here.origin_allowed("file://", "localhost")
    assert not here.origin_allowed("http://[", "localhost")
    as_typed = Doorkeeper("Gw.Example", hosts={"My-Mac.local."}, origins={"https://App.Example/"})
    assert as_typed.host_allowed("my-mac.local")
    assert as_typed.host_allowed("gw.example")
    assert as_typed.origin_allowed("https://app.example", "gw.example")
    everywhere = Doorkeeper("0.0.0.0")
    assert everywhere.host_allowed("192.168.1.5:8080")  # an address can't be rebound
    assert not everywhere.host_allowed("evil.example")


def test_no_job_waits_in_the_queue_past_its_deadline() -> None:
    waits = Waits(Timers(job_deadline=20.0), queue_seconds=30.0)
    assert waits.until(Phase.QUEUED, since=100.0, created=100.0, first_content=None) == 120.0
    assert waits.until(Phase.QUEUED, since=119.0, created=100.0, first_content=None) == 120.0


def test_origins_a_provider_may_have_dialled() -> None:
    assert origins_of("Gw.example:8080", secure=False) == ["ws://gw.example:8080", "wss://gw.example:8080"]
    assert origins_of("gw.example:443", secure=True) == ["wss://gw.example:443", "wss://gw.example"]
    assert "ws://gw.example" in origins_of("gw.example:80", secure=False)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.2.0", (1, 2)),
        ("1.10", (1, 10)),
        ("2", (2,)),
        ("1.2rc1", (1, 2)),
        ("dev", ()),
        ("0.0.1", (0, 0, 1)),
    ],
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


# --- API keys ------------------------------------------------------------------------------------


def test_keys_are_made_once_and_kept_as_hashes(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.toml"
    created = "2026-01-31T10:00:00Z"
    laptop = add_key(path, "laptop", created=created)
    admin = add_key(path, "admin", created=created, admin=True)
    text = path.read_text()
    assert laptop not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = load_keys(path)
    found = ring.find(laptop)
    assert found is not None
    assert (found.name, found.admin) == ("laptop", False)
    is_admin = ring.find(admin)
    assert is_admin is not None
    assert is_admin.admin
    assert found.id != is_admin.id
    for wrong in ("", laptop[:-1], laptop + "x", "\udc00"):
        assert ring.find(wrong) is None
    with pytest.raises(KeysError, match="already"):
        add_key(path, "laptop", created=created)
    with pytest.raises(KeysError, match="no such file"):
        load_keys(tmp_path / "typo.toml")


def test_adding_keeps_what_was_written_by_hand() -> None:
    text, _ = with_new_key("# mine\n", "a", created="2026-01-31T10:00:00Z")
    assert text.startswith("# mine\n\n[keys.a]\n")


def test_a_running_gateway_takes_up_new_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    first = add_key(path, "first", created="2026-01-31T10:00:00Z")
    keys = KeysFile(path, 100.0)
    second = add_key(path, "second", created="2026-01-31T10:00:00Z")
    assert keys.ring(100.5).find(second) is None  # not looked at so soon
    assert keys.ring(101.5).find(second) is not None
    path.write_text("[keys.first")  # caught half written: the keys in force stay
    assert keys.ring(103.0).find(first) is not None
    assert keys.fault is not None
    path.unlink()
    assert keys.ring(105.0).find(first) is not None
    add_key(path, "third", created="2026-01-31T10:00:00Z")
    assert keys.ring(107.0).find(first) is None  # revoked
    assert keys.fault is None


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("[keys.x]\nid = 'k'\nsha256 = 'nope'", "sha256"),
        ("[keys.x]\nsha256 = '" + "0" * 64 + "'", "id"),
        ("[keys.'a b']\nid = 'k'", "name"),
        ("[keys.x]\nid = 'k'\nsha256 = '" + "0" * 64 + "'\nstreams = 0", "streams"),
        ("[keys.x]\nid = 'k'\nsha256 = '" + "0" * 64 + "'\nadmin = 1", "admin"),
        ("keys = 1", "table"),
        ("[", "TOML"),
    ],
)
def test_a_wrong_keys_file_is_named(entry: str, named: str) -> None:
    with pytest.raises(KeysError, match=named):
        parse_keys(entry)


def test_rate() -> None:
    rate = Rate()
    assert [rate.take("k", 2, 0.0) for _ in range(3)] == [0.0, 0.0, 30.0]
    assert rate.take("other", 2, 0.0) == 0.0
    assert rate.take("k", 2, 15.0) == 15.0
    assert rate.take("k", 2, 31.0) == 0.0


# --- prefixes ------------------------------------------------------------------------------------


def test_the_next_turn_shares_the_longest_prefix() -> None:
    def hashes(messages: list[dict[str, Any]], tenant: str = "t") -> tuple[bytes, ...]:
        body = {"model": "m", "messages": messages}
        return prefix_hashes(check_request(body, contract="malibu"), tenant)

    first: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    second = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "u2"}]
    assert hashes(first)[0] in hashes(second)
    assert hashes(first)[0] not in hashes(second, "another tenant")
    assert len(hashes([{"role": "user", "content": str(n)} for n in range(200)])) == 16


# --- event bytes ---------------------------------------------------------------------------------

TRICKY = [
    "plain",
    'quote " and \\ back',
    "line\nbreak\r\ttab",
    "é 漢字 🎉",
    "\u2028\x00\x7f",
    '"delta":{}',
    "",
]
CALL = ToolCallDelta(index=0, id="call_1", type="function", function=FunctionDelta(name="f", arguments=""))


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("model", ["org/model", '"delta":{} ⚡'])
def test_chunks_are_byte_for_byte_those_of_the_protocol(include_usage: bool, model: str) -> None:
    same: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": model}
    writer = sse.ChunkWriter(**same, include_usage=include_usage)
    deltas = [Delta(role="assistant", content="")]
    deltas += [Delta(content=text) for text in TRICKY] + [Delta(reasoning_content=text) for text in TRICKY]
    deltas += [Delta(tool_calls=(CALL,)), Delta(content="a", reasoning_content="b")]
    for delta, logprobs in itertools.product(deltas, (None, {"content": []})):
        expected = completion.chunk(**same, delta=delta, logprobs=logprobs, include_usage=include_usage)
        written = writer.delta(delta, logprobs)
        assert written == sse.data(expected)
        assert written.count(b"\n") == 2
        assert json.loads(written.removeprefix(b"data: ")) == expected
    expected = completion.chunk(
        **same, finish_reason=FinishReason.STOP, include_usage=include_usage, receipt="r"
    )
    assert writer.finish(FinishReason.STOP, "r") == sse.data(expected)
    usage = Usage(prompt_tokens=1, completion_tokens=2)
    assert writer.usage(usage) == sse.data(completion.usage_chunk(**same, usage=usage))
