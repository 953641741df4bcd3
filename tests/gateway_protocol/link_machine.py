"""A provider and a gateway as bare sessions over a wire that is cut, repeats and reorders: a state machine.

What is allowed to happen: the wire loses all that is in flight, and either end notices first; a frame comes
twice; frames of different jobs overtake each other; a handshake breaks off at any step; jobs are cancelled,
given up and offered anew. What must hold: for each attempt the gateway sees its texts in order, none lost,
none doubled, and at most one end; when all is quiet, each attempt that was not given up has ended exactly
once, and both ledgers are empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway_protocol.codec import decode_from_gateway, decode_from_provider, encode
from gateway_protocol.messages import (
    Challenge,
    Delta,
    FinishReason,
    JobAccepted,
    JobCancel,
    JobChunk,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobRejected,
    Registered,
)
from gateway_protocol.receipts import CHAIN_START, chain_link
from gateway_protocol.session import GatewayJobs, GatewaySession, ProviderJobs, ProviderSession, events
from gateway_protocol.session.job_frames import JobFrame
from tests.gateway_protocol.wire_examples import ERROR, USAGE, register

Attempt = tuple[str, int]


class FrameStore(Protocol):
    """What a provider keeps for the gateway; all methods take an attempt's job."""

    def open(self, attempt: Attempt) -> None: ...
    def accept(self, attempt: Attempt) -> None: ...
    def say(self, attempt: Attempt, text: str) -> None: ...
    def end(self, attempt: Attempt, make: Callable[[int], JobFrame]) -> None: ...
    def linked(self) -> None: ...
    def resume(self, attempt: Attempt, from_seq: int) -> None: ...
    def acknowledge(self, attempt: Attempt, seq: int) -> None: ...
    def drop(self, attempt: Attempt) -> None: ...
    def next_frame(self) -> str | None: ...


class KeptFrames:
    """The simplest store: every frame of a job is kept until its end is acknowledged."""

    def __init__(self, made: Callable[[JobFrame], bool]) -> None:
        self._made = made
        self._frames: dict[Attempt, list[JobFrame]] = {}
        self._chains: dict[Attempt, bytes] = {}
        self._unsent: dict[Attempt, int] = {}

    def open(self, attempt: Attempt) -> None:
        self._frames[attempt], self._unsent[attempt] = [], 0
        self._chains[attempt] = CHAIN_START

    def accept(self, attempt: Attempt) -> None:
        self._add(attempt, accepted(attempt))

    def say(self, attempt: Attempt, text: str) -> None:
        frame, self._chains[attempt] = chunk_of(attempt, self._chunks(attempt), self._chains[attempt], text)
        self._add(attempt, frame)

    def end(self, attempt: Attempt, make: Callable[[int], JobFrame]) -> None:
        self._add(attempt, make(self._chunks(attempt)))

    def _chunks(self, attempt: Attempt) -> int:
        return sum(isinstance(frame, JobChunk) for frame in self._frames[attempt])

    def _add(self, attempt: Attempt, frame: JobFrame) -> None:
        assert self._made(frame)
        self._frames[attempt].append(frame)

    def linked(self) -> None:
        self._unsent = {attempt: len(frames) for attempt, frames in self._frames.items()}

    def resume(self, attempt: Attempt, from_seq: int) -> None:
        kept = self._frames[attempt]
        opening = sum(isinstance(frame, JobAccepted) for frame in kept)
        self._unsent[attempt] = opening + from_seq if from_seq else 0

    def acknowledge(self, attempt: Attempt, seq: int) -> None:
        pass

    def drop(self, attempt: Attempt) -> None:
        self._frames.pop(attempt, None)

    def next_frame(self) -> str | None:
        for attempt, frames in self._frames.items():
            at = self._unsent[attempt]
            if at < len(frames):
                self._unsent[attempt] = at + 1
                # Last come, first served next time: turns between jobs.
                self._frames[attempt] = self._frames.pop(attempt)
                return encode(frames[at])
        return None


def accepted(attempt: Attempt) -> JobAccepted:
    return JobAccepted(job_id=attempt[0], attempt=attempt[1], prompt_tokens=3)


def chunk_of(attempt: Attempt, seq: int, chain: bytes, text: str) -> tuple[JobChunk, bytes]:
    delta = Delta(content=text)
    link = chain_link(chain, seq, delta)
    return JobChunk(job_id=attempt[0], attempt=attempt[1], seq=seq, delta=delta, chain=link.hex()), link


def completed(attempt: Attempt) -> Callable[[int], JobFrame]:
    return lambda seq: JobCompleted(
        job_id=attempt[0],
        attempt=attempt[1],
        seq=seq,
        finish_reason=FinishReason.STOP,
        usage=USAGE,
        receipt="r",
    )


def failed(attempt: Attempt) -> Callable[[int], JobFrame]:
    return lambda seq: JobFailed(job_id=attempt[0], attempt=attempt[1], seq=seq, error=ERROR)


def rejected(attempt: Attempt) -> Callable[[int], JobFrame]:
    return lambda seq: JobRejected(job_id=attempt[0], attempt=attempt[1], error=ERROR)


class Lanes:
    """Frames in flight one way: in order for each job, in any order between jobs and handshake."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[str]] = defaultdict(list)

    def put(self, frame: str, decode: Callable[[str], Any]) -> None:
        self._lanes[getattr(decode(frame), "job_id", "")].append(frame)

    def take(self, pick: int, *, twice: bool) -> str | None:
        """The head of one lane; `twice`: it stays and will come again."""
        lanes = [lane for lane in self._lanes.values() if lane]
        if not lanes:
            return None
        lane = lanes[pick % len(lanes)]
        return lane[0] if twice else lane.pop(0)


class LinkMachine(RuleBasedStateMachine):
    """Set `make_store` in a subclass to test another store of frames."""

    make_store: Callable[[Callable[[JobFrame], bool]], FrameStore] = KeptFrames

    def __init__(self) -> None:
        super().__init__()
        self.provider_jobs, self.gateway_jobs = ProviderJobs(), GatewayJobs()
        self.store = type(self).make_store(self.provider_jobs.made)
        self.provider: ProviderSession | None = None
        self.gateway: GatewaySession | None = None
        self.to_gateway, self.to_provider = Lanes(), Lanes()
        self.offered: list[Attempt] = []
        self.gave_up: set[Attempt] = set()
        self.said: dict[Attempt, str] = defaultdict(str)
        self.heard: dict[Attempt, str] = defaultdict(str)
        self.ends: dict[Attempt, list[str]] = defaultdict(list)
        self.phase: dict[Attempt, str] = {}

    # --- the wire ------------------------------------------------------------------------------

    @precondition(lambda self: self.provider is None)
    @rule(breaks_at=st.sampled_from([None, None, None, 1, 2, 3]))
    def connect(self, breaks_at: int | None) -> None:
        """Dial and register; `breaks_at`: the handshake frame that is lost."""
        self.to_gateway, self.to_provider = Lanes(), Lanes()
        provider, gateway = ProviderSession(self.provider_jobs), GatewaySession()
        challenge = gateway.send(Challenge(protocol_versions=(1,), gateway_id="g", nonce="n", time_ms=0))
        if breaks_at == 1:
            return
        assert isinstance(provider.receive_frame(challenge)[0], events.ChallengeReceived)
        frame = provider.send(register(self.provider_jobs.active_jobs()))
        if breaks_at == 2:
            return
        (registration,) = gateway.receive_frame(frame)
        assert isinstance(registration, events.RegistrationReceived)
        if self.gateway is not None:
            self.gateway.close()
        admission = gateway.admit(registration.register, self.gateway_jobs)
        opened = gateway.send(
            Registered(session_id="s", heartbeat_interval_ms=1, resume_window_ms=1, resume=admission.resume)
        )
        self.gateway = gateway
        for event in admission.events:
            self.at_gateway(event)
        if breaks_at == 3:
            return
        self.provider = provider
        for event_ in provider.receive_frame(opened):
            self.at_provider(event_)

    @precondition(lambda self: self.provider is not None)
    @rule(both_notice=st.booleans())
    def cut(self, both_notice: bool) -> None:
        """Everything in flight is lost. The gateway may go on believing in the link."""
        assert self.provider is not None
        self.provider.close()
        self.provider = None
        if both_notice and self.gateway is not None:
            self.gateway.close()
        self.to_gateway, self.to_provider = Lanes(), Lanes()

    @rule(picks=st.lists(st.integers(0, 9), min_size=1, max_size=8), twice=st.booleans())
    def deliver_to_gateway(self, picks: list[int], twice: bool) -> None:
        """Some frames arrive; `twice`: the last of them will come again."""
        for left, pick in enumerate(reversed(picks)):
            frame = self.to_gateway.take(pick, twice=twice and not left)
            if frame is not None and self.gateway is not None and self.provider is not None:
                for event in self.gateway.receive_frame(frame):
                    self.at_gateway(event)

    @rule(picks=st.lists(st.integers(0, 9), min_size=1, max_size=8), twice=st.booleans())
    def deliver_to_provider(self, picks: list[int], twice: bool) -> None:
        for left, pick in enumerate(reversed(picks)):
            frame = self.to_provider.take(pick, twice=twice and not left)
            if frame is not None and self.provider is not None:
                for event in self.provider.receive_frame(frame):
                    self.at_provider(event)

    @rule(count=st.integers(1, 9))
    def provider_sends(self, count: int) -> None:
        for _ in range(count):
            if self.provider is not None and (frame := self.store.next_frame()) is not None:
                self.to_gateway.put(frame, decode_from_provider)

    @rule()
    def gateway_acknowledges(self) -> None:
        for ack in self.gateway.acknowledgements() if self.gateway is not None else ():
            self.gateway_sends(ack)

    @rule(rounds=st.integers(1, 4), picks=st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def flow(self, rounds: int, picks: list[int]) -> None:
        """A good stretch: frames go both ways and are acknowledged, some stay in flight."""
        for _ in range(rounds):
            self.deliver_to_provider(picks, False)
            for attempt, phase in [*self.phase.items()]:
                if phase != "ended" and len(self.said[attempt]) < 9:
                    self.accept(attempt)
                    self.said[attempt] += "x"
                    self.store.say(attempt, "x")
            self.provider_sends(len(picks) + 1)
            self.deliver_to_gateway(picks, False)
            self.gateway_acknowledges()

    def gateway_sends(self, message: Any) -> None:
        """Into the wire, or into nothing where the gateway hasn't noticed that there is none."""
        assert self.gateway is not None
        frame = self.gateway.send(message)
        if self.provider is not None:
            self.to_provider.put(frame, decode_from_gateway)

    # --- the gateway ---------------------------------------------------------------------------

    @rule(count=st.integers(1, 3), again=st.booleans(), pick=st.integers(0, 9))
    def offer(self, count: int, again: bool, pick: int) -> None:
        """New jobs, or the next attempt of one that is over here."""
        if self.gateway is None or not self.gateway.is_open:
            self.connect(breaks_at=None)
        for number in range(count):
            attempt = (f"job{len(self.offered)}", 1)
            if again and self.offered:
                job_id = self.offered[(pick + number) % len(self.offered)][0]
                latest = max(known for known_id, known in self.offered if known_id == job_id)
                if self.gateway_jobs.get(job_id, latest) is None:
                    attempt = (job_id, latest + 1)
            self.offered.append(attempt)
            self.gateway_sends(JobOffer(job_id=attempt[0], attempt=attempt[1], request={}, deadline_ms=1))

    @precondition(lambda self: self.gateway is not None and self.gateway.is_open)
    @rule(pick=st.integers(0, 9), give_up=st.booleans())
    def cancel(self, pick: int, give_up: bool) -> None:
        if not len(self.gateway_jobs):
            return
        job = [*self.gateway_jobs][pick % len(self.gateway_jobs)]
        self.gateway_sends(JobCancel(job_id=job.job_id, attempt=job.attempt, reason="buyer_left"))
        if give_up:
            self.gateway_jobs.close(job.job_id, job.attempt)
            self.gave_up.add((job.job_id, job.attempt))

    def at_gateway(self, event: events.GatewayEvent) -> None:
        match event:
            case events.Send(message):
                self.gateway_sends(message)
            case events.ChunkReceived(chunk):
                attempt = (chunk.job_id, chunk.attempt)
                assert not self.ends[attempt]
                self.heard[attempt] += chunk.delta.content or ""
            case events.JobEnded(frame):
                self.ends[frame.job_id, frame.attempt].append(frame.type)
            case events.JobLost(job_id, number):
                self.ends[job_id, number].append("lost")
            case events.JobWasAccepted():
                pass
            case _:
                raise AssertionError(f"unexpected {event}")

    # --- the provider --------------------------------------------------------------------------

    def at_provider(self, event: events.ProviderEvent) -> None:
        match event:
            case events.JobOffered(offer):
                attempt = (offer.job_id, offer.attempt)
                assert attempt not in self.phase, "offered twice"
                self.phase[attempt] = "offered"
                self.store.open(attempt)
            case events.CancelRequested(job_id, number):
                if self.phase[job_id, number] != "ended":
                    self.finish((job_id, number), failed((job_id, number)))
            case events.JobAcknowledged(job_id, number, seq, done):
                self.store.acknowledge((job_id, number), seq)
                if done:
                    assert self.phase[job_id, number] == "ended"
                    self.store.drop((job_id, number))
            case events.JobResumed(job_id, number, from_seq):
                self.store.resume((job_id, number), from_seq)
            case events.JobAbandoned(job_id, number):
                self.phase[job_id, number] = "ended"
                self.store.drop((job_id, number))
            case events.LinkOpened():
                self.store.linked()
            case _:
                raise AssertionError(f"unexpected {event}")

    def working(self, pick: int, phases: tuple[str, ...]) -> Attempt | None:
        found = [attempt for attempt, phase in self.phase.items() if phase in phases]
        return found[pick % len(found)] if found else None

    def finish(self, attempt: Attempt, make: Callable[[int], JobFrame]) -> None:
        self.phase[attempt] = "ended"
        self.store.end(attempt, make)

    @rule(pick=st.integers(0, 9), texts=st.lists(st.text(min_size=1, max_size=3), max_size=6))
    def work(self, pick: int, texts: list[str]) -> None:
        """Accept a job if need be, and say something."""
        if (attempt := self.working(pick, ("offered", "accepted"))) is not None:
            self.accept(attempt)
            for text in texts:
                self.said[attempt] += text
                self.store.say(attempt, text)

    def accept(self, attempt: Attempt) -> None:
        if self.phase[attempt] == "offered":
            self.phase[attempt] = "accepted"
            self.store.accept(attempt)

    @rule(pick=st.integers(0, 9), fail=st.booleans())
    def end(self, pick: int, fail: bool) -> None:
        if (attempt := self.working(pick, ("offered", "accepted"))) is None:
            return
        if self.phase[attempt] == "offered":
            self.finish(attempt, failed(attempt) if fail else rejected(attempt))
        else:
            self.finish(attempt, failed(attempt) if fail else completed(attempt))

    # --- what holds ----------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_doubled_or_ended_twice(self) -> None:
        for attempt, heard in self.heard.items():
            assert self.said[attempt].startswith(heard)
        for attempt, ends in self.ends.items():
            assert len(ends) <= 1, ends
            if ends == ["job_completed"]:
                assert self.heard[attempt] == self.said[attempt]

    def teardown(self) -> None:
        """Let everything come to rest over a good link."""
        if self.provider is None:
            self.connect(breaks_at=None)
        for attempt, phase in [*self.phase.items()]:
            if phase != "ended":
                self.accept(attempt)
                self.finish(attempt, completed(attempt))
        self.settle()
        # Only a cancel that was lost can have left something, and the next registration settles that.
        assert {(job.job_id, job.attempt) for job in self.provider_jobs} <= self.gave_up
        self.cut(both_notice=False)
        self.connect(breaks_at=None)
        self.settle()
        for attempt in self.offered:
            assert len(self.ends[attempt]) == (0 if attempt in self.gave_up else 1), (attempt, self.ends)
        assert len(self.gateway_jobs) == 0
        assert len(self.provider_jobs) == 0
        assert self.store.next_frame() is None

    def settle(self) -> None:
        quiet = False
        while not quiet:
            quiet = True
            for attempt in [*self.phase]:
                if self.phase[attempt] in ("offered", "accepted"):
                    self.finish(attempt, failed(attempt))
            while (frame := self.store.next_frame()) is not None:
                self.to_gateway.put(frame, decode_from_provider)
            while (frame := self.to_gateway.take(0, twice=False)) is not None:
                quiet = False
                assert self.gateway is not None
                for event in self.gateway.receive_frame(frame):
                    self.at_gateway(event)
            self.gateway_acknowledges()
            while (frame := self.to_provider.take(0, twice=False)) is not None:
                quiet = False
                assert self.provider is not None
                for event_ in self.provider.receive_frame(frame):
                    self.at_provider(event_)
