"""Frames: what comes back as it went, what is tolerated, and that everything else is one declared error."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_protocol.codec import (
    FrameError,
    UnknownMessage,
    decode_from_gateway,
    decode_from_provider,
    encode,
)
from gateway_protocol.limits import FRAME_FROM_GATEWAY_BYTES, FRAME_FROM_PROVIDER_BYTES
from gateway_protocol.messages import Delta, JobChunk, JobOffer, Nack, NackCode, Wire
from tests.gateway_protocol.wire_examples import FROM_GATEWAY, FROM_PROVIDER, json_values

SECRET = "my-password-hunter2"
CARRIED = {"request", "logprobs", "protocol_version", "protocol_versions"}
NACK_WITH = '{"type":"nack","code":"malformed","message":"%s"}'


@pytest.mark.parametrize("message", FROM_GATEWAY, ids=lambda message: message.type)
def test_gateway_message_comes_back_as_it_went(message: Any) -> None:
    assert decode_from_gateway(encode(message)) == message


@pytest.mark.parametrize("message", FROM_PROVIDER, ids=lambda message: message.type)
def test_provider_message_comes_back_as_it_went(message: Any) -> None:
    assert decode_from_provider(encode(message)) == message


def test_text_is_utf8_and_not_ascii_escaped() -> None:
    frame = encode(Nack(code=NackCode.MALFORMED, message="Grüße 🙂"))
    assert "Grüße 🙂" in frame


def test_null_members_are_left_out_but_the_request_is_carried_as_it_is() -> None:
    request = {"temperature": None, "messages": [{"content": None}], "big": 2**64, "deep": {"default": None}}
    frame = json.loads(encode(JobOffer(job_id="j", attempt=1, request=request, deadline_ms=1)))
    assert "tenant" not in frame
    assert frame["request"] == request


def _with_another_number(value: Any, number: str) -> Iterator[Any]:
    """`value` once for each of its own numbers, with `number` in that one's place."""
    if isinstance(value, dict):
        for name, member in value.items():
            for changed in _with_another_number(member, number):
                yield {**value, name: changed}
    elif isinstance(value, list):
        for at, member in enumerate(value):
            for changed in _with_another_number(member, number):
                yield [*value[:at], changed, *value[at + 1 :]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield number


@pytest.mark.parametrize("number", ["9007199254740992", "-1", "1e999", "NaN", "1" + "0" * 400])
@pytest.mark.parametrize("message", [*FROM_GATEWAY, *FROM_PROVIDER], ids=lambda message: message.type)
def test_a_number_that_nobody_can_wait_for_or_store_is_malformed(message: Any, number: str) -> None:
    """Those that are a peer's own: a request is carried as it is, and any version may be named."""
    decode = decode_from_gateway if message in FROM_GATEWAY else decode_from_provider
    frame = json.loads(encode(message))
    carried = {name: frame.pop(name) for name in CARRIED & frame.keys()}
    for changed in _with_another_number(frame, "HERE"):
        text = json.dumps({**changed, **carried}).replace('"HERE"', number)
        with pytest.raises(FrameError) as refused:
            decode(text)
        assert refused.value.nack_code in (NackCode.MALFORMED, NackCode.NOT_JSON)


def test_unknown_fields_and_types_are_tolerated() -> None:
    frame = '{"type":"job_ack","job_id":"j","attempt":1,"seq":0,"from_the_future":{"a":[1]}}'
    assert decode_from_gateway(frame) == FROM_GATEWAY[5]
    assert decode_from_gateway('{"type":"job_pause","x":1}') == UnknownMessage("job_pause")
    assert decode_from_provider('{"type":"gossip"}') == UnknownMessage("gossip")


@pytest.mark.parametrize(
    ("frame", "code", "in_reply_to"),
    [
        ("", NackCode.NOT_JSON, None),
        ("{", NackCode.NOT_JSON, None),
        ('{"type":"nack"} {}', NackCode.NOT_JSON, None),
        ("[" * 100_000, NackCode.NOT_JSON, None),
        ('{"type":"job_ack","seq":NaN}', NackCode.NOT_JSON, None),
        ('{"type":"job_offer","request":{"x":-Infinity}}', NackCode.NOT_JSON, None),
        (NACK_WITH % "\\ud800", NackCode.NOT_JSON, None),
        (NACK_WITH % "\ud800", NackCode.NOT_JSON, None),
        ("[]", NackCode.MALFORMED, None),
        ("null", NackCode.MALFORMED, None),
        ('"job_ack"', NackCode.MALFORMED, None),
        ("{}", NackCode.MALFORMED, None),
        ('{"type":null}', NackCode.MALFORMED, None),
        ('{"type":5}', NackCode.MALFORMED, None),
        ('{"type":["nack"]}', NackCode.MALFORMED, None),
        ('{"type":"' + "x" * 65 + '"}', NackCode.MALFORMED, None),
        ('{"type":"job_chunk"}', NackCode.UNEXPECTED, "job_chunk"),
        ('{"type":"job_ack"}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":"j","attempt":0,"seq":0}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":"j","attempt":1,"seq":"0"}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":"j","attempt":1,"seq":true}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":7,"attempt":1,"seq":0}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":"","attempt":1,"seq":0}', NackCode.MALFORMED, "job_ack"),
        ('{"type":"job_ack","job_id":"j j","attempt":1,"seq":0}', NackCode.MALFORMED, "job_ack"),
        (f'{{"type":"job_ack","job_id":"{"j" * 129}","attempt":1,"seq":0}}', NackCode.MALFORMED, "job_ack"),
        (b'{"type":"drain"}', NackCode.MALFORMED, None),
        (b"\xff\xfe", NackCode.MALFORMED, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_fault_has_its_code(frame: str | bytes, code: NackCode, in_reply_to: str | None) -> None:
    with pytest.raises(FrameError) as caught:
        decode_from_gateway(frame)
    assert (caught.value.nack_code, caught.value.in_reply_to) == (code, in_reply_to)
    assert decode_from_provider(encode(caught.value.nack())) == caught.value.nack()


def test_the_words_nan_and_infinity_are_fine_inside_strings() -> None:
    for message in ("NaN", "-Infinity", 'say "NaN"'):
        nack = Nack(code=NackCode.MALFORMED, message=message)
        assert decode_from_gateway(encode(nack)) == nack


@pytest.mark.parametrize("filler", ["x", "é", "🙂"])
def test_a_frame_at_the_cap_passes_and_one_byte_over_does_not(filler: str) -> None:
    for decode, cap in (
        (decode_from_provider, FRAME_FROM_PROVIDER_BYTES),
        (decode_from_gateway, FRAME_FROM_GATEWAY_BYTES),
    ):
        room = cap - len(NACK_WITH % "")
        exact = NACK_WITH % (filler * (room // len(filler.encode())) + "x" * (room % len(filler.encode())))
        assert len(exact.encode()) == cap
        assert isinstance(decode(exact), Nack)
        with pytest.raises(FrameError) as caught:
            decode(exact + " ")
        assert caught.value.nack_code is NackCode.TOO_LARGE


def test_a_frame_that_its_peer_would_refuse_is_not_sent() -> None:
    text = "x" * FRAME_FROM_PROVIDER_BYTES
    with pytest.raises(FrameError) as caught:
        encode(JobChunk(job_id="j", attempt=1, seq=0, delta=Delta(content=text), chain="c"))
    assert (caught.value.nack_code, caught.value.in_reply_to) == (NackCode.TOO_LARGE, "job_chunk")
    encode(JobOffer(job_id="j", attempt=1, request={"messages": text}, deadline_ms=1))


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"nack","code":"%s","message":"x"}',
        '{"type":"job_offer","job_id":"j","attempt":"%s","request":{"%s":1},"deadline_ms":1}',
        '{"type":"job_offer","job_id":"j","attempt":1,"request":"%s","deadline_ms":1}',
        '{"type":"%s!"}',
        '{"%s":',
        '["%s"]',
    ],
)
def test_an_error_never_repeats_what_the_frame_held(frame: str) -> None:
    with pytest.raises(FrameError) as caught:
        decode_from_gateway(frame.replace("%s", SECRET))
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.nack())
    assert SECRET not in shown


def test_messages_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        FROM_GATEWAY[5].seq = 4  # type: ignore[misc]


# --- nothing but FrameError ----------------------------------------------------------------------


def decode_both(frame: str | bytes) -> None:
    for decode in (decode_from_gateway, decode_from_provider):
        try:
            message: Wire | UnknownMessage = decode(frame)
        except FrameError as error:
            decode_from_gateway(encode(error.nack()))
        else:
            assert isinstance(message, Wire | UnknownMessage)


@given(st.text() | st.binary())
def test_random_frames_raise_nothing_else(frame: str | bytes) -> None:
    decode_both(frame)


TYPES = [message.type for message in (*FROM_GATEWAY, *FROM_PROVIDER)]
FIELDS = sorted({name for message in (*FROM_GATEWAY, *FROM_PROVIDER) for name in type(message).model_fields})


@given(
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=6),
)
def test_random_objects_of_known_types_raise_nothing_else(kind: str, fields: dict[str, Any]) -> None:
    decode_both(json.dumps({**fields, "type": kind}))
    decode_both(json.dumps({**fields, "type": kind}, ensure_ascii=False))


@given(st.sampled_from([*FROM_GATEWAY, *FROM_PROVIDER]), st.integers(min_value=0), st.text(max_size=3))
@settings(max_examples=200)
def test_frames_with_a_piece_replaced_raise_nothing_else(message: Any, at: int, piece: str) -> None:
    frame = encode(message)
    at %= len(frame)
    decode_both(frame[:at] + piece + frame[at + 1 :])
    decode_both(frame[:at])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_minutes_of_broken_frames_raise_nothing_else() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    frames = [encode(message) for message in (*FROM_GATEWAY, *FROM_PROVIDER)]
    spice = [
        '"',
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\\",
        "\\u",
        "\\ud83d",
        "null",
        "1e999",
        "NaN",
        "\x00",
        "🙂",
        "-",
    ]
    until = time.monotonic() + 120
    try:
        while time.monotonic() < until:
            for _ in range(500):
                frame = rng.choice(frames)
                for _ in range(rng.randint(1, 6)):
                    start = rng.randrange(len(frame) + 1)
                    end = min(len(frame), start + rng.choice([0, 0, 1, 1, 5, 50]))
                    other = rng.choice(frames)
                    cut = rng.randrange(len(other))
                    piece = rng.choice([rng.choice(spice), other[cut : cut + rng.randrange(40)], ""])
                    frame = frame[:start] + piece + frame[end:]
                decode_both(frame)
    except Exception as error:
        raise AssertionError(f"seed {seed}") from error
