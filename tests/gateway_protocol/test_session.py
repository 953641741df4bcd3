"""Two sessions and their ledgers: each row of the tables, each way a link can go wrong."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from gateway_protocol.codec import FrameError, UnknownMessage, encode
from gateway_protocol.limits import OPEN_ATTEMPTS
from gateway_protocol.messages import (
    ActiveJob,
    Challenge,
    Delta,
    Drain,
    Draining,
    FinishReason,
    HeartbeatAck,
    JobAccepted,
    JobAck,
    JobCancel,
    JobChunk,
    JobCompleted,
    JobFailed,
    JobOffer,
    JobRejected,
    Nack,
    NackCode,
    Refused,
    RefusedCode,
    Registered,
    ResumeJob,
    Wire,
)
from gateway_protocol.receipts import CHAIN_START, chain_link
from gateway_protocol.session import (
    GatewayJobs,
    GatewaySession,
    IllegalMove,
    JobPhase,
    LinkPhase,
    ProviderJobs,
    ProviderSession,
    events,
)
from gateway_protocol.session.job_frames import JobFrame, advance
from gateway_protocol.session.link import transition
from tests.gateway_protocol.link_machine import LinkMachine
from tests.gateway_protocol.wire_examples import ERROR, FROM_GATEWAY, FROM_PROVIDER, HEAD, USAGE, register

CHALLENGE = Challenge(protocol_versions=(1,), gateway_id="g", nonce="n", time_ms=0)
OFFER = JobOffer(job_id="j", attempt=1, request={}, deadline_ms=1)
ACCEPTED = JobAccepted(job_id="j", attempt=1, prompt_tokens=3)
REJECTED = JobRejected(job_id="j", attempt=1, error=ERROR)
CANCEL = JobCancel(job_id="j", attempt=1, reason="buyer_left")
HEARTBEAT = FROM_PROVIDER[1]


def registered(*resume: ResumeJob) -> Registered:
    return Registered(session_id="s", heartbeat_interval_ms=1, resume_window_ms=1, resume=resume)


def chunks(count: int, *, attempt: int = 1, first: Delta | None = None) -> list[JobChunk]:
    """A chain of chunks, the first of them with a role alone."""
    made, link = [], CHAIN_START
    for seq in range(count):
        delta = Delta(content=f"t{seq}") if seq else first or Delta(role="assistant", content="")
        link = chain_link(link, seq, delta)
        made.append(JobChunk(job_id="j", attempt=attempt, seq=seq, delta=delta, chain=link.hex()))
    return made


def completed(seq: int, *, attempt: int = 1) -> JobCompleted:
    return JobCompleted(
        job_id="j", attempt=attempt, seq=seq, finish_reason=FinishReason.STOP, usage=USAGE, receipt="r"
    )


def failed(seq: int, *, attempt: int = 1) -> JobFailed:
    return JobFailed(job_id="j", attempt=attempt, seq=seq, error=ERROR)


def ack(seq: int, *, attempt: int = 1) -> JobAck:
    return JobAck(job_id="j", attempt=attempt, seq=seq)


class Ends:
    """A provider's and a gateway's session, and what they keep over links."""

    def __init__(self) -> None:
        self.provider_jobs, self.gateway_jobs = ProviderJobs(), GatewayJobs()
        self.link()

    def link(self) -> list[events.ProviderEvent | events.GatewayEvent]:
        """A new link up to `registered`; what it brought about at both ends."""
        self.provider, self.gateway = ProviderSession(self.provider_jobs), GatewaySession()
        self.provider.receive_frame(self.gateway.send(CHALLENGE))
        (registration,) = self.gateway.receive_frame(
            self.provider.send(register(self.provider_jobs.active_jobs()))
        )
        assert isinstance(registration, events.RegistrationReceived)
        admission = self.gateway.admit(registration.register, self.gateway_jobs)
        opened = self.provider.receive_frame(self.gateway.send(registered(*admission.resume)))
        assert isinstance(opened[0], events.LinkOpened)
        return [*opened[1:], *admission.events]

    def to_gateway(self, *frames: JobFrame) -> list[events.GatewayEvent]:
        """Frames that the provider has just made."""
        found: list[events.GatewayEvent] = []
        for frame in frames:
            assert self.provider_jobs.made(frame)
            found += self.gateway.receive_frame(encode(frame))
        return found

    def to_provider(self, message: Any) -> list[events.ProviderEvent]:
        return self.provider.receive_frame(self.gateway.send(message))


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def offered(ends: Ends) -> Ends:
    assert ends.to_provider(OFFER) == [events.JobOffered(OFFER)]
    return ends


@pytest.fixture
def streaming(offered: Ends) -> Ends:
    """Accepted, and three chunks have arrived."""
    offered.to_gateway(ACCEPTED, *chunks(3))
    return offered


def nacks(found: Any) -> list[NackCode]:
    messages = [event.message for event in found if isinstance(event, events.Send)]
    return [message.code for message in messages if isinstance(message, Nack)]


# --- phases of a link ----------------------------------------------------------------------------


def test_a_link_opens_step_by_step() -> None:
    provider, gateway = ProviderSession(ProviderJobs()), GatewaySession()
    ends = (provider, gateway)
    assert [end.phase for end in ends] == [LinkPhase.CONNECTED] * 2
    assert provider.receive_frame(gateway.send(CHALLENGE)) == [events.ChallengeReceived(CHALLENGE, True)]
    assert [end.phase for end in ends] == [LinkPhase.CHALLENGED] * 2
    request = register()
    assert gateway.receive_frame(provider.send(request)) == [events.RegistrationReceived(request)]
    assert [end.phase for end in ends] == [LinkPhase.REGISTERING] * 2
    assert not gateway.is_open
    assert gateway.admit(request, GatewayJobs()) == ((), [])
    opened = registered()
    assert provider.receive_frame(gateway.send(opened)) == [events.LinkOpened(opened)]
    assert provider.is_open
    assert gateway.is_open


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_gateway_may_refuse_until_it_has_registered(steps: int) -> None:
    provider, gateway = ProviderSession(ProviderJobs()), GatewaySession()
    if steps > 0:
        provider.receive_frame(gateway.send(CHALLENGE))
    if steps > 1:
        gateway.receive_frame(provider.send(register()))
    refusal = Refused(code=RefusedCode.TOO_MANY, message="m", retry_after_ms=60_000)
    assert provider.receive_frame(gateway.send(refusal)) == [events.LinkRefused(refusal)]
    assert provider.phase is gateway.phase is LinkPhase.CLOSED


def test_a_gateway_that_speaks_another_version_is_told_apart() -> None:
    challenge = Challenge(protocol_versions=(2, 3), gateway_id="g", nonce="n", time_ms=0)
    found = ProviderSession(ProviderJobs()).receive(challenge)
    assert found == [events.ChallengeReceived(challenge, False)]


@pytest.mark.parametrize(
    "message",
    [message for message in FROM_GATEWAY if message.type not in ("challenge", "refused", "nack")],
    ids=lambda message: message.type,
)
def test_before_the_challenge_everything_else_is_out_of_place(message: Any) -> None:
    session = ProviderSession(ProviderJobs())
    assert nacks(session.receive(message)) == [NackCode.UNEXPECTED]
    assert session.phase is LinkPhase.CONNECTED
    with pytest.raises(IllegalMove):
        GatewaySession().send(message)


@pytest.mark.parametrize(
    "message",
    [message for message in FROM_PROVIDER if message.type != "nack"],
    ids=lambda message: message.type,
)
def test_before_the_challenge_a_provider_says_nothing(message: Any) -> None:
    session = GatewaySession()
    assert nacks(session.receive(message)) == [NackCode.UNEXPECTED]
    assert session.phase is LinkPhase.CONNECTED
    with pytest.raises(IllegalMove):
        ProviderSession(ProviderJobs()).send(message)


def test_an_open_link_takes_no_second_handshake(ends: Ends) -> None:
    assert nacks(ends.provider.receive(CHALLENGE)) == [NackCode.UNEXPECTED]
    assert nacks(ends.provider.receive(registered())) == [NackCode.UNEXPECTED]
    assert nacks(ends.gateway.receive(register())) == [NackCode.UNEXPECTED]
    assert ends.provider.is_open
    with pytest.raises(IllegalMove):
        ends.gateway.admit(register(), GatewayJobs())


def test_a_closed_session_is_deaf_and_mute(streaming: Ends) -> None:
    streaming.provider.close()
    streaming.gateway.close()
    assert streaming.provider.receive_frame(encode(CANCEL)) == []
    assert streaming.gateway.receive_frame(encode(completed(3))) == []
    assert streaming.gateway.acknowledgements() == []
    with pytest.raises(IllegalMove):
        streaming.gateway.send(CANCEL)
    with pytest.raises(IllegalMove):
        streaming.provider.send(HEARTBEAT)
    assert streaming.gateway_jobs.get("j", 1) is not None


def test_a_frame_too_large_to_send_leaves_the_phase_alone() -> None:
    session = ProviderSession(ProviderJobs())
    session.receive(CHALLENGE)
    with pytest.raises(FrameError):
        session.send(register().model_copy(update={"provider_id": "x" * 2**20}))
    assert session.phase is LinkPhase.CHALLENGED


def test_every_pair_of_phase_and_message_is_decided() -> None:
    kinds = {message.type for message in (*FROM_GATEWAY, *FROM_PROVIDER)}
    allowed = set()
    for phase in LinkPhase:
        for kind in kinds:
            try:
                transition(phase, kind)
            except IllegalMove:
                continue
            allowed.add((phase, kind))
    serving = kinds - {"challenge", "register", "registered", "refused"}
    assert {kind for phase, kind in allowed if phase is LinkPhase.OPEN} == serving
    assert {kind for phase, kind in allowed if phase is LinkPhase.DRAINING} == serving
    assert {kind for phase, kind in allowed if phase is LinkPhase.CLOSED} == set()


# --- frames that can't be read -------------------------------------------------------------------


def test_a_malformed_frame_gets_a_nack_and_the_session_goes_on(ends: Ends) -> None:
    assert nacks(ends.provider.receive_frame("{")) == [NackCode.NOT_JSON]
    assert nacks(ends.gateway.receive_frame('{"type":"job_chunk"}')) == [NackCode.MALFORMED]
    assert nacks(ends.gateway.receive_frame("x" * (1 << 20) + "x")) == [NackCode.TOO_LARGE]
    assert nacks(ends.gateway.receive_frame(b"\x00")) == [NackCode.MALFORMED]
    assert ends.to_provider(OFFER) == [events.JobOffered(OFFER)]


def test_a_malformed_frame_ends_the_attempt_that_it_names_once(streaming: Ends) -> None:
    frame = '{"type":"job_failed","job_id":"j","attempt":1,"seq":"2"}'
    named, cancel, broken = streaming.gateway.receive_frame(frame)
    assert isinstance(named, events.Send)
    assert isinstance(named.message, Nack)
    assert (named.message.job_id, named.message.attempt) == ("j", 1)
    assert cancel == events.Send(JobCancel(job_id="j", attempt=1, reason="malformed"))
    assert broken == events.JobBroken("j", 1, NackCode.MALFORMED, had_content=True)
    (again,) = streaming.gateway.receive_frame(frame)
    assert isinstance(again, events.Send)


def test_an_ending_that_is_nacked_is_kept_no_longer(streaming: Ends) -> None:
    streaming.provider_jobs.made(failed(3))
    refused = Nack(in_reply_to="job_failed", job_id="j", attempt=1, code=NackCode.MALFORMED, message="m")
    assert streaming.to_provider(refused) == [
        events.NackReceived(refused),
        events.JobAbandoned("j", 1, events.AbandonReason.NACKED),
    ]
    assert len(streaming.provider_jobs) == 0


@pytest.mark.parametrize("answered", ["job_chunk", "job_failed"])
def test_a_job_that_runs_is_not_given_up_for_a_nack(streaming: Ends, answered: str) -> None:
    refused = Nack(in_reply_to=answered, job_id="j", attempt=1, code=NackCode.MALFORMED, message="m")
    assert streaming.to_provider(refused) == [events.NackReceived(refused)]


def test_an_offer_that_can_not_be_read_is_nacked_by_name(ends: Ends) -> None:
    ends.gateway.send(OFFER)
    (refused,) = ends.provider.receive_frame('{"type":"job_offer","job_id":"j","attempt":1,"request":[]}')
    assert isinstance(refused, events.Send)
    found = ends.gateway.receive_frame(ends.provider.send(refused.message))
    assert found[1:] == [events.JobBroken("j", 1, NackCode.MALFORMED, had_content=False)]
    assert ends.gateway_jobs.get("j", 1) is None


def test_a_nack_is_never_answered(ends: Ends) -> None:
    nack = Nack(in_reply_to="job_chunk", code=NackCode.BAD_CHAIN, message="m")
    assert ends.provider.receive(nack) == [events.NackReceived(nack)]
    assert ends.gateway.receive(nack) == [events.NackReceived(nack)]
    assert ends.provider.receive_frame('{"type":"nack"}') == []
    assert ends.gateway.receive_frame('{"type":"nack","code":"new_code","message":"m"}') == []


def test_a_newer_peers_message_has_no_effect(ends: Ends) -> None:
    assert ends.provider.receive_frame('{"type":"job_pause"}') == []
    assert ends.gateway.receive(UnknownMessage("gossip")) == []


def test_heartbeats_and_draining_pass_through(ends: Ends) -> None:
    assert ends.gateway.receive_frame(ends.provider.send(HEARTBEAT)) == [events.HeartbeatReceived(HEARTBEAT)]
    answer = HeartbeatAck(routable=True, time_ms=1)
    assert ends.to_provider(answer) == [events.HeartbeatAcknowledged(answer)]
    assert ends.to_provider(Drain(deadline_ms=5)) == [events.DrainRequested(5)]
    draining = Draining(in_flight=0, deadline_ms=1)
    assert ends.gateway.receive_frame(ends.provider.send(draining)) == [events.DrainingReceived(draining)]
    assert ends.gateway.receive_frame(ends.provider.send(draining)) == [events.DrainingReceived(draining)]


def test_nothing_is_offered_to_a_provider_that_drains_but_an_offer_may_cross_it(ends: Ends) -> None:
    draining = ends.provider.send(Draining(in_flight=0, deadline_ms=1))
    assert ends.to_provider(OFFER) == [events.JobOffered(OFFER)]
    ends.gateway.receive_frame(draining)
    with pytest.raises(IllegalMove):
        ends.gateway.send(OFFER.model_copy(update={"job_id": "k"}))
    assert ends.gateway_jobs.get("k", 1) is None


# --- one job, from offer to end ------------------------------------------------------------------


def test_the_table_of_a_job() -> None:
    kinds = ("job_accepted", "job_rejected", "job_chunk", "job_completed", "job_failed")
    allowed = set()
    for phase in JobPhase:
        for kind in kinds:
            try:
                allowed.add((phase, kind, advance(phase, kind)))
            except IllegalMove:
                continue
    offered, accepted, streaming, ended = JobPhase
    assert allowed == {
        (offered, "job_accepted", accepted),
        (offered, "job_rejected", ended),
        (offered, "job_failed", ended),
        (accepted, "job_chunk", streaming),
        (accepted, "job_completed", ended),
        (accepted, "job_failed", ended),
        (streaming, "job_chunk", streaming),
        (streaming, "job_completed", ended),
        (streaming, "job_failed", ended),
    }


def test_a_job_runs_from_offer_to_acknowledged_end(offered: Ends) -> None:
    made = chunks(3)
    found = offered.to_gateway(ACCEPTED, *made)
    assert found == [
        events.JobWasAccepted(ACCEPTED),
        events.ChunkReceived(made[0], first_content=False),
        events.ChunkReceived(made[1], first_content=True),
        events.ChunkReceived(made[2], first_content=False),
    ]
    assert offered.gateway.acknowledgements() == [ack(2)]
    assert offered.gateway.acknowledgements() == []
    assert offered.to_provider(ack(2)) == [events.JobAcknowledged("j", 1, 2, done=False)]
    sent, ended = offered.to_gateway(completed(3))
    assert ended == events.JobEnded(completed(3), chain=made[2].chain, chunks=3)
    assert sent == events.Send(ack(3))
    assert offered.to_provider(ack(3)) == [events.JobAcknowledged("j", 1, 3, done=True)]
    assert len(offered.provider_jobs) == len(offered.gateway_jobs) == 0


def test_withheld_acknowledgements_are_made_up_for(offered: Ends) -> None:
    made = chunks(3)
    offered.to_gateway(ACCEPTED, *made[:2])
    assert offered.gateway.acknowledgements(withheld={"j"}) == []
    assert offered.gateway_jobs.owes_acknowledgements
    offered.to_gateway(made[2])
    assert offered.gateway.acknowledgements(withheld={"another"}) == [ack(2)]
    assert not offered.gateway_jobs.owes_acknowledgements
    assert offered.gateway.acknowledgements() == []


def test_the_end_of_a_job_is_acknowledged_at_once_whatever_is_withheld(streaming: Ends) -> None:
    assert streaming.gateway.acknowledgements(withheld={"j"}) == []
    assert events.Send(ack(3)) in streaming.to_gateway(failed(3))
    assert not streaming.gateway_jobs.owes_acknowledgements


@pytest.mark.parametrize("first", [Delta(content="x"), Delta(reasoning_content="x"), HEAD])
def test_first_content_is_text_reasoning_or_a_tool_delta(offered: Ends, first: Delta) -> None:
    found = offered.to_gateway(ACCEPTED, *chunks(2, first=first))
    firsts = [event.first_content for event in found if isinstance(event, events.ChunkReceived)]
    assert firsts == [True, False]


def test_an_end_covers_the_acknowledgement_of_the_chunks(streaming: Ends) -> None:
    streaming.to_gateway(failed(3))
    assert streaming.gateway.acknowledgements() == []
    assert streaming.to_provider(ack(3)) == [events.JobAcknowledged("j", 1, 3, done=True)]


@pytest.mark.parametrize("terminal", [REJECTED, failed(0)])
def test_a_job_that_ends_before_it_began_is_acknowledged_too(offered: Ends, terminal: Any) -> None:
    found = offered.to_gateway(terminal)
    assert found == [events.Send(ack(0)), events.JobEnded(terminal, CHAIN_START.hex(), 0)]
    assert offered.to_provider(ack(0)) == [events.JobAcknowledged("j", 1, 0, done=True)]


def test_a_cancel_reaches_the_provider_once(streaming: Ends) -> None:
    assert streaming.to_provider(CANCEL) == [events.CancelRequested("j", 1, "buyer_left")]
    assert streaming.to_provider(CANCEL) == []
    streaming.to_gateway(failed(3))
    assert streaming.provider.receive(CANCEL) == []
    streaming.to_provider(ack(3))
    assert streaming.provider.receive(CANCEL) == []


def test_a_cancel_that_crosses_the_end_is_nothing(streaming: Ends) -> None:
    assert streaming.provider_jobs.made(completed(3))
    assert streaming.to_provider(CANCEL) == []


def test_a_job_never_heard_of_is_named_in_a_nack(ends: Ends) -> None:
    assert nacks(ends.provider.receive(CANCEL)) == [NackCode.UNKNOWN_JOB]
    assert nacks(ends.provider.receive(ack(0))) == [NackCode.UNKNOWN_JOB]
    frames: list[JobFrame] = [ACCEPTED, REJECTED, chunks(1)[0], completed(0), failed(0)]
    for frame in frames:
        assert nacks(ends.gateway.receive(frame)) == [NackCode.UNKNOWN_JOB]


# --- duplicates, late frames, attempts -----------------------------------------------------------


def test_duplicates_change_nothing(streaming: Ends) -> None:
    repeated: list[JobFrame] = [ACCEPTED, *chunks(3)]
    for frame in repeated:
        assert streaming.gateway.receive(frame) == []
    assert streaming.provider.receive(OFFER) == []
    assert streaming.to_provider(ack(1)) == [events.JobAcknowledged("j", 1, 1, done=False)]
    assert streaming.to_provider(ack(1)) == []
    assert streaming.to_provider(ack(0)) == []
    streaming.to_gateway(completed(3))
    assert streaming.gateway.receive(completed(3)) == [events.Send(ack(3))]
    assert streaming.gateway.receive(chunks(3)[2]) == []
    streaming.to_provider(ack(3))
    assert streaming.provider.receive(OFFER) == []
    assert streaming.provider.receive(ack(3)) == []


def test_a_duplicate_is_not_believed_to_differ(streaming: Ends) -> None:
    """What was acknowledged stands, whatever a repetition says."""
    other = chunks(3)[1].model_copy(update={"delta": Delta(content="other"), "chain": "0" * 64})
    assert streaming.gateway.receive(other) == []


def test_more_is_never_acknowledged_than_was_made(streaming: Ends) -> None:
    assert nacks(streaming.provider.receive(ack(3))) == [NackCode.BAD_SEQUENCE]
    assert streaming.provider_jobs.made(completed(3))
    assert nacks(streaming.provider.receive(ack(4))) == [NackCode.BAD_SEQUENCE]
    assert streaming.provider.receive(ack(2)) == [events.JobAcknowledged("j", 1, 2, done=False)]
    assert streaming.provider.receive(ack(3)) == [events.JobAcknowledged("j", 1, 3, done=True)]


def test_offers_without_acknowledged_endings_come_to_a_bound(ends: Ends) -> None:
    provider = ends.provider
    for number in range(OPEN_ATTEMPTS):
        offer = OFFER.model_copy(update={"job_id": f"j{number}"})
        assert provider.receive(offer) == [events.JobOffered(offer)]
    (answer,) = provider.receive(OFFER.model_copy(update={"job_id": "one_more"}))
    assert isinstance(answer, events.Send)
    assert isinstance(answer.message, Nack)
    assert (answer.message.code, answer.message.job_id) == (NackCode.UNEXPECTED, "one_more")
    # One of those that are open may still be offered anew.
    assert provider.receive(OFFER.model_copy(update={"job_id": "j0", "attempt": 2}))[-1] == events.JobOffered(
        OFFER.model_copy(update={"job_id": "j0", "attempt": 2})
    )


def test_late_frames_of_an_attempt_that_was_given_up_are_dropped_but_its_end_is_acknowledged(
    streaming: Ends,
) -> None:
    streaming.to_provider(CANCEL)
    streaming.gateway_jobs.close("j", 1)
    late = chunks(4)[3]
    assert streaming.to_gateway(late) == []
    assert streaming.gateway.acknowledgements() == []
    assert streaming.to_gateway(failed(4)) == [events.Send(ack(4))]
    assert streaming.to_provider(ack(4)) == [events.JobAcknowledged("j", 1, 4, done=True)]


def test_a_newer_attempt_replaces_an_older_one(streaming: Ends) -> None:
    streaming.gateway_jobs.close("j", 1)
    offer = OFFER.model_copy(update={"attempt": 2})
    assert streaming.to_provider(offer) == [
        events.JobAbandoned("j", 1, events.AbandonReason.SUPERSEDED),
        events.JobOffered(offer),
    ]
    assert streaming.provider_jobs.made(chunks(4)[3]) is False
    assert streaming.gateway.receive(chunks(4)[3]) == []
    assert streaming.gateway.receive(failed(4)) == [events.Send(ack(4))]
    assert streaming.provider.receive(ack(4)) == []
    assert streaming.provider.receive(CANCEL) == []
    accepted = ACCEPTED.model_copy(update={"attempt": 2})
    assert streaming.to_gateway(accepted) == [events.JobWasAccepted(accepted)]
    assert nacks(streaming.provider.receive(OFFER)) == [NackCode.STALE_ATTEMPT]


def test_one_attempt_at_a_time_is_offered_to_a_provider(offered: Ends) -> None:
    for attempt in (1, 2):
        with pytest.raises(IllegalMove):
            offered.gateway.send(OFFER.model_copy(update={"attempt": attempt}))
    offered.gateway_jobs.close("j", 1)
    with pytest.raises(IllegalMove):
        offered.gateway.send(OFFER)


# --- a provider that breaks the protocol ---------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (chunks(5)[4], NackCode.BAD_SEQUENCE),
        (completed(2), NackCode.BAD_SEQUENCE),
        (completed(4), NackCode.BAD_SEQUENCE),
        (failed(0), NackCode.BAD_SEQUENCE),
        (chunks(4)[3].model_copy(update={"chain": "0" * 64}), NackCode.BAD_CHAIN),
        (chunks(4)[3].model_copy(update={"delta": Delta(content="tampered")}), NackCode.BAD_CHAIN),
        (chunks(4)[3].model_copy(update={"chain": ""}), NackCode.BAD_CHAIN),
        (REJECTED, NackCode.UNEXPECTED),
    ],
)
def test_a_breach_ends_the_job_and_nothing_else(streaming: Ends, frame: JobFrame, code: NackCode) -> None:
    nack, cancel, broken = streaming.gateway.receive(frame)
    assert nacks([nack]) == [code]
    assert cancel == events.Send(CANCEL.model_copy(update={"reason": str(code)}))
    assert broken == events.JobBroken("j", 1, code, had_content=True)
    assert streaming.gateway.is_open
    assert streaming.gateway.receive(chunks(4)[3]) == []
    assert streaming.to_provider(cancel.message) == [events.CancelRequested("j", 1, str(code))]
    assert streaming.to_gateway(failed(3)) == [events.Send(ack(3))]


def test_a_chunk_before_acceptance_is_a_breach(offered: Ends) -> None:
    found = offered.gateway.receive(chunks(1)[0])
    assert nacks(found) == [NackCode.UNEXPECTED]
    assert found[-1] == events.JobBroken("j", 1, NackCode.UNEXPECTED, had_content=False)


@pytest.mark.parametrize(
    "frame", [ACCEPTED, REJECTED, chunks(5)[4], chunks(3)[2], completed(2), completed(4)]
)
def test_a_provider_can_not_make_a_frame_out_of_order(streaming: Ends, frame: JobFrame) -> None:
    with pytest.raises(IllegalMove):
        streaming.provider_jobs.made(frame)
    assert streaming.provider_jobs.made(completed(3))


def test_a_job_has_exactly_one_end(streaming: Ends) -> None:
    assert streaming.provider_jobs.made(completed(3))
    for frame in (completed(3), failed(3), REJECTED, chunks(4)[3]):
        with pytest.raises(IllegalMove):
            streaming.provider_jobs.made(frame)


def test_a_frame_of_a_job_never_offered_is_a_bug(ends: Ends) -> None:
    with pytest.raises(IllegalMove):
        ends.provider_jobs.made(ACCEPTED)
    with pytest.raises(IllegalMove):
        Ends().gateway_jobs.offer("j", 0)


# --- cut and resume ------------------------------------------------------------------------------


def test_after_a_cut_a_job_goes_on_where_the_gateway_stands(streaming: Ends) -> None:
    made = chunks(5)
    for lost in made[3:]:
        assert streaming.provider_jobs.made(lost)
    assert streaming.provider_jobs.active_jobs() == (ActiveJob(job_id="j", attempt=1, next_seq=5),)
    assert streaming.link() == [events.JobResumed("j", 1, from_seq=3)]
    assert streaming.provider.receive(ack(2)) == []
    for chunk in made[3:]:
        assert streaming.gateway.receive(chunk) == [events.ChunkReceived(chunk, first_content=False)]
    assert streaming.to_gateway(completed(5))[1] == events.JobEnded(completed(5), made[4].chain, 5)


def test_an_end_that_was_lost_comes_again(streaming: Ends) -> None:
    assert streaming.provider_jobs.made(completed(3))
    assert streaming.link() == [events.JobResumed("j", 1, from_seq=3)]
    assert streaming.gateway.receive(completed(3))[0] == events.Send(ack(3))


def test_an_end_whose_acknowledgement_was_lost_is_forgotten(streaming: Ends) -> None:
    streaming.to_gateway(completed(3))
    assert streaming.link() == [events.JobAbandoned("j", 1, events.AbandonReason.NOT_RESUMED)]
    assert len(streaming.provider_jobs) == 0


def test_an_acceptance_or_a_rejection_that_was_lost_comes_again(offered: Ends) -> None:
    assert offered.provider_jobs.made(REJECTED)
    assert offered.link() == [events.JobResumed("j", 1, from_seq=0)]
    assert offered.gateway.receive(REJECTED)[0] == events.Send(ack(0))


@pytest.mark.parametrize("had_content", [False, True])
def test_a_job_that_its_provider_lost_is_named(offered: Ends, had_content: bool) -> None:
    if had_content:
        offered.to_gateway(ACCEPTED, *chunks(2))
    offered.provider_jobs = ProviderJobs()
    assert offered.link() == [events.JobLost("j", 1, had_content)]
    assert len(offered.gateway_jobs) == 0


def test_an_offer_that_never_arrived_is_lost(ends: Ends) -> None:
    ends.gateway.send(OFFER)
    assert ends.link() == [events.JobLost("j", 1, had_content=False)]


def test_a_provider_that_made_less_than_arrived_has_lost_the_job(streaming: Ends) -> None:
    provider, gateway = ProviderSession(ProviderJobs()), GatewaySession()
    provider.receive_frame(gateway.send(CHALLENGE))
    request = register((ActiveJob(job_id="j", attempt=1, next_seq=2),))
    gateway.receive_frame(provider.send(request))
    admission = gateway.admit(request, streaming.gateway_jobs)
    assert admission == ((), [events.JobLost("j", 1, had_content=True)])


def test_a_job_that_was_given_up_during_the_cut_is_abandoned(streaming: Ends) -> None:
    streaming.gateway_jobs.close("j", 1)
    assert streaming.link() == [events.JobAbandoned("j", 1, events.AbandonReason.NOT_RESUMED)]
    assert streaming.provider_jobs.made(chunks(4)[3]) is False
    assert streaming.provider_jobs.made(failed(3)) is False


def test_a_cancel_that_was_lost_is_sent_again(streaming: Ends) -> None:
    streaming.gateway.send(CANCEL)
    resumed, cancel = streaming.link()
    assert resumed == events.JobResumed("j", 1, from_seq=3)
    assert cancel == events.Send(CANCEL)
    assert streaming.to_provider(CANCEL) == [events.CancelRequested("j", 1, "buyer_left")]


@pytest.mark.parametrize("from_seq", [1, 4])
def test_what_is_not_kept_can_not_be_resumed(streaming: Ends, from_seq: int) -> None:
    streaming.to_provider(ack(1))
    session = ProviderSession(streaming.provider_jobs)
    session.receive(CHALLENGE)
    session.send(register())
    found = session.receive(registered(ResumeJob(job_id="j", attempt=1, from_seq=from_seq)))
    assert nacks(found) == [NackCode.BAD_SEQUENCE]
    assert found[-1] == events.JobAbandoned("j", 1, events.AbandonReason.CANNOT_RESUME)


def test_a_resume_of_what_is_not_here_is_named_in_a_nack() -> None:
    session = ProviderSession(ProviderJobs())
    session.receive(CHALLENGE)
    session.send(register())
    found = session.receive(registered(ResumeJob(job_id="j", attempt=1, from_seq=0)))
    assert nacks(found) == [NackCode.UNKNOWN_JOB]


def test_frames_of_a_replaced_session_have_no_effect(streaming: Ends) -> None:
    former = streaming.gateway
    former.close()
    streaming.link()
    assert former.receive(chunks(4)[3]) == []
    assert streaming.gateway.receive(chunks(4)[3]) == [events.ChunkReceived(chunks(4)[3], False)]


def test_memory_of_finished_jobs_is_bounded(ends: Ends) -> None:
    for number in range(5000):
        offer = OFFER.model_copy(update={"job_id": f"j{number}"})
        ends.gateway.send(offer)
        ends.gateway_jobs.close(f"j{number}", 1)
    assert ends.gateway_jobs.is_over("j4999", 1)
    assert not ends.gateway_jobs.is_over("j0", 1)


# --- properties ----------------------------------------------------------------------------------

TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def narrowed(rng: random.Random, message: Any) -> Any:
    """The message about one of few jobs, attempts and numbers, so that frames meet each other."""
    update: dict[str, Any] = {}
    for name, values in (("job_id", "ab"), ("attempt", (1, 2)), ("seq", (0, 1, 2))):
        if name in type(message).model_fields:
            update[name] = rng.choice(values)
    if isinstance(message, Registered):
        update["resume"] = (ResumeJob(job_id=rng.choice("ab"), attempt=1, from_seq=rng.choice((0, 1))),)
    if message.type == "register":
        update["active_jobs"] = (ActiveJob(job_id=rng.choice("ab"), attempt=1, next_seq=rng.choice((0, 1))),)
    if isinstance(message, JobChunk) and rng.random() < 0.7:
        link = chain_link(CHAIN_START, 0, message.delta)
        update |= {"seq": 0, "chain": link.hex()}
    return message.model_copy(update=update)


def babble(seed: int, steps: int) -> None:
    """Both ends hear, say and make anything at any time: only the declared errors may come of it."""
    rng = random.Random(seed)
    provider_jobs, gateway_jobs = ProviderJobs(), GatewayJobs()
    provider, gateway = ProviderSession(provider_jobs), GatewaySession()
    for _ in range(steps):
        inbound, outbound = narrowed(rng, rng.choice(FROM_GATEWAY)), narrowed(rng, rng.choice(FROM_PROVIDER))
        for event in (*provider.receive_frame(encode(inbound)), *gateway.receive_frame(encode(outbound))):
            assert not isinstance(event, events.Send) or isinstance(event.message, Wire)
        try:
            match rng.randrange(6):
                case 0:
                    provider.send(outbound)
                case 1:
                    gateway.send(inbound)
                case 2 if isinstance(outbound, JobFrame):
                    provider_jobs.made(outbound)
                case 3:
                    gateway.admit(register(provider_jobs.active_jobs()), gateway_jobs)
                case 4:
                    gateway.acknowledgements()
                case 5 if rng.random() < 0.1:
                    provider, gateway = ProviderSession(provider_jobs), GatewaySession()
                case _:
                    gateway_jobs.close(rng.choice("ab"), rng.choice((1, 2)))
        except IllegalMove:
            pass


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_random_talk_raises_nothing_else(seed: int) -> None:
    babble(seed, 60)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_minutes_of_random_talk_raise_nothing_else() -> None:
    seed = random.randrange(1 << 32)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        seed += 1
        try:
            babble(seed, 300)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_cuts_lose_and_double_nothing() -> None:
    thorough = settings(TestLinkMachine.settings, max_examples=800, stateful_step_count=60)
    run_state_machine_as_test(LinkMachine, settings=thorough)
