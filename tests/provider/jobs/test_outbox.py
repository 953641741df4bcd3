"""The outbox against a model of the gateway: no chunk lost or doubled, whatever is cut and when."""

import json

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from provider.jobs.outbox import Outbox
from provider.jobs.pieces import Piece, PieceKind


def seal(seq: int, piece: Piece) -> str:
    return json.dumps({"seq": seq, "text": piece.text})


def terminal(chunks: int) -> str:
    return json.dumps({"seq": chunks, "terminal": True})


def text(value: str) -> Piece:
    return Piece(PieceKind.TEXT, value)


def drain(outbox: Outbox) -> list[str]:
    frames = []
    while (frame := outbox.next_frame()) is not None:
        frames.append(frame)
    return frames


def test_accepted_goes_first_and_terminal_last() -> None:
    outbox = Outbox()
    outbox.open("j", 1, seal)
    outbox.accept("j", "accepted")
    outbox.append("j", [text("a"), text("b")])
    outbox.finish("j", terminal)
    assert drain(outbox) == ["accepted", seal(0, text("a")), seal(1, text("b")), terminal(2)]
    assert outbox.next_frame() is None


def test_below_the_bound_pieces_stay_as_they_are() -> None:
    outbox = Outbox()
    outbox.open("j", 1, seal)
    for char in "abc":
        assert outbox.append("j", [text(char)]) is False
    assert len(drain(outbox)) == 3


def test_the_terminal_frame_is_kept_until_it_is_acknowledged() -> None:
    outbox = Outbox()
    outbox.open("j", 1, seal)
    outbox.append("j", [text("a")])
    outbox.finish("j", terminal)
    assert drain(outbox) == [seal(0, text("a")), terminal(1)]
    assert outbox.acknowledge("j", 1, 0) == (False, [])
    outbox.rewind()
    assert drain(outbox) == []
    assert outbox.resume("j", 1, 1)
    assert drain(outbox) == [terminal(1)]
    assert outbox.acknowledge("j", 1, 1) == (True, [])
    assert "j" not in outbox
    assert outbox.bytes == 0


def test_accepted_is_repeated_until_something_is_acknowledged() -> None:
    outbox = Outbox()
    outbox.open("j", 1, seal)
    outbox.accept("j", "accepted")
    assert drain(outbox) == ["accepted"]
    outbox.rewind()
    assert outbox.resume("j", 1, 0)
    outbox.append("j", [text("a")])
    assert drain(outbox) == ["accepted", seal(0, text("a"))]
    outbox.acknowledge("j", 1, 0)
    outbox.rewind()
    assert outbox.resume("j", 1, 1)
    assert drain(outbox) == []


def test_a_job_that_can_not_be_resumed() -> None:
    outbox = Outbox()
    outbox.open("j", 2, seal)
    outbox.append("j", [text("a"), text("b")])
    drain(outbox)
    outbox.acknowledge("j", 2, 0)
    outbox.rewind()
    assert not outbox.resume("other", 2, 0)
    assert not outbox.resume("j", 1, 1)
    assert not outbox.resume("j", 2, 0)  # forgotten
    assert not outbox.resume("j", 2, 3)  # never made
    assert outbox.resume("j", 2, 2)


def test_stray_acknowledgements_change_nothing() -> None:
    outbox = Outbox()
    outbox.open("j", 2, seal)
    outbox.append("j", [text("a")])
    assert outbox.acknowledge("j", 1, 0) == (False, [])
    assert outbox.acknowledge("k", 1, 0) == (False, [])
    assert outbox.acknowledge("j", 2, 99) == (False, [])
    assert drain(outbox) == [seal(0, text("a"))]


def test_at_the_bound_pieces_are_joined_then_decoding_waits() -> None:
    outbox = Outbox(job_bytes=20_000, total_bytes=100_000)
    outbox.open("j", 1, seal)
    waits = [outbox.append("j", [text("x" * 10)]) for _ in range(1_000)]
    # 1,000 pieces with their overhead are far over 20,000 bytes; joined they are 10,000 and fit.
    assert not any(waits)
    assert outbox.bytes <= 20_000
    assert outbox.append("j", [text("y" * 15_000)]) is True
    frames = drain(outbox)
    assert "".join(json.loads(frame)["text"] for frame in frames) == "x" * 10_000 + "y" * 15_000
    assert len(frames) < 10
    assert outbox.acknowledge("j", 1, len(frames) - 1) == (False, ["j"])
    assert outbox.bytes == 0
    assert outbox.append("j", [text("z")]) is False


def test_the_bound_over_all_jobs_stops_whoever_adds() -> None:
    outbox = Outbox(job_bytes=20_000, total_bytes=30_000)
    for job_id in "ab":
        outbox.open(job_id, 1, seal)
    assert outbox.append("a", [text("x" * 18_000)]) is False
    assert outbox.append("b", [text("y" * 18_000)]) is True
    frames = drain(outbox)
    assert outbox.acknowledge("a", 1, 0) == (False, [])  # b itself is over half of its own bound
    assert outbox.acknowledge("b", 1, 0) == (False, ["b"])
    assert len(frames) == 2


def test_turns_are_fair() -> None:
    outbox = Outbox()
    for job_id in "abc":
        outbox.open(job_id, 1, lambda seq, piece: piece.text)
        outbox.append(job_id, [text(f"{job_id}{n}") for n in range(3)])
    assert drain(outbox) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_a_cancelled_job_forgets_what_was_not_sealed() -> None:
    outbox = Outbox()
    outbox.open("j", 1, seal)
    outbox.append("j", [text("a"), text("b")])
    assert outbox.next_frame() == seal(0, text("a"))
    outbox.finish("j", terminal, discard=True)
    assert drain(outbox) == [terminal(1)]
    with pytest.raises(RuntimeError, match="exactly one terminal"):
        outbox.finish("j", terminal)


def test_the_room_of_a_job_that_is_dropped_is_the_others() -> None:
    outbox = Outbox(job_bytes=6_000, total_bytes=6_000)
    for job_id in "ab":
        outbox.open(job_id, 1, seal)
    assert outbox.append("a", [text("x" * 5_000)]) is False
    assert outbox.append("b", [text("y" * 1_000)]) is True
    drain(outbox)
    # All of b's text has arrived: it waits for nothing but what a still holds.
    assert outbox.acknowledge("b", 1, 0) == (False, [])
    outbox.drop("a")
    assert outbox.released() == ["b"]
    assert outbox.released() == []


class CutLinks(RuleBasedStateMachine):
    """Two jobs, one link that is cut at will; the gateway's side holds what arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(job_bytes=3_000, total_bytes=5_000)
        self.made = {"a": "", "b": ""}
        self.got: dict[str, list[str]] = {"a": [], "b": []}
        self.terminals = {"a": 0, "b": 0}
        self.finished: set[str] = set()
        self.forgotten: set[str] = set()
        self.waiting: set[str] = set()
        self.seqs = {"a": 0, "b": 0}
        self.in_flight: list[str] = []
        for job_id in self.made:
            self.outbox.open(job_id, 1, self.sealer(job_id))

    @staticmethod
    def sealer(job_id: str):
        return lambda seq, piece: json.dumps({"job": job_id, "seq": seq, "text": piece.text})

    def open_jobs(self) -> list[str]:
        return [job_id for job_id in self.made if job_id not in self.finished]

    @rule(job_id=st.sampled_from("ab"), value=st.text("xyz", min_size=1, max_size=900))
    def generate(self, job_id: str, value: str) -> None:
        if job_id in self.finished or job_id in self.waiting:
            return
        self.made[job_id] += value
        if self.outbox.append(job_id, [text(value)]):
            self.waiting.add(job_id)

    @rule(job_id=st.sampled_from("ab"))
    def finish(self, job_id: str) -> None:
        if job_id in self.finished:
            return
        self.finished.add(job_id)
        self.outbox.finish(
            job_id, lambda chunks: json.dumps({"job": job_id, "seq": chunks, "terminal": True})
        )

    @rule(count=st.integers(1, 5))
    def send(self, count: int) -> None:
        for _ in range(count):
            frame = self.outbox.next_frame()
            if frame is not None:
                self.in_flight.append(frame)

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 5))
    def arrive(self, count: int) -> None:
        for _ in range(min(count, len(self.in_flight))):
            self.receive(json.loads(self.in_flight.pop(0)))

    def receive(self, frame: dict) -> None:
        job_id = frame["job"]
        if frame.get("terminal"):
            if not self.terminals[job_id]:
                assert frame["seq"] == len(self.got[job_id])
            self.terminals[job_id] = 1
            return
        if frame["seq"] < len(self.got[job_id]):
            assert self.got[job_id][frame["seq"]] == frame["text"]  # a replay repeats exactly
            return
        assert frame["seq"] == len(self.got[job_id])
        self.got[job_id].append(frame["text"])

    @rule(job_id=st.sampled_from("ab"))
    def acknowledge(self, job_id: str) -> None:
        seq = len(self.got[job_id]) - 1 + self.terminals[job_id]
        if seq < 0:
            return
        over, released = self.outbox.acknowledge(job_id, 1, seq)
        self.waiting -= set(released)
        if over:
            self.forgotten.add(job_id)

    @rule(arrived=st.integers(0, 3))
    def cut(self, arrived: int) -> None:
        for frame in self.in_flight[:arrived]:
            self.receive(json.loads(frame))
        self.in_flight.clear()
        self.outbox.rewind()
        for job_id in self.made:
            if job_id not in self.forgotten:
                assert self.outbox.resume(job_id, 1, len(self.got[job_id]))
        self.waiting -= set(self.outbox.released())

    @invariant()
    def who_waits_has_something_unacknowledged(self) -> None:
        if self.outbox.bytes == 0:
            assert not self.waiting

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for job_id, pieces in self.got.items():
            assert self.made[job_id].startswith("".join(pieces))
            if self.terminals[job_id]:
                assert "".join(pieces) == self.made[job_id]
        assert self.outbox.bytes == sum(job.bytes for job in self.outbox.jobs())

    def teardown(self) -> None:
        for job_id in self.open_jobs():
            self.finish(job_id)
        self.cut(0)
        self.send(10_000)
        self.arrive(10_000)
        for job_id in self.made:
            assert "".join(self.got[job_id]) == self.made[job_id]
            assert self.terminals[job_id] == 1
            self.acknowledge(job_id)
        assert self.outbox.bytes == 0
        assert len(self.outbox) == 0


TestCutLinks = CutLinks.TestCase
TestCutLinks.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
