"""Receipts: golden bytes of every form, a second library as verifier, and each tampering named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import KeySet, OKPKey

from gateway_protocol.answer import NO_ANSWER, Answer, AnswerCollector
from gateway_protocol.canonical import canonical_bytes
from gateway_protocol.completion import chat_completion, chunk, error_event, usage_chunk
from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import Delta, FinishReason, FunctionDelta, ToolCallDelta, Usage
from gateway_protocol.receipts import (
    CHAIN_START,
    Difference,
    Receipt,
    ReceiptUsage,
    Terminal,
    UnreadableRecord,
    Verdict,
    Verification,
    chain_link,
    make_receipt,
    make_status,
    read_receipt,
    receipt_bytes,
    request_sha256,
    response_sha256,
    verify,
    verify_receipt,
    verify_status,
)
from gateway_protocol.signing import (
    BadSignature,
    MalformedToken,
    ProviderKey,
    UnknownKey,
    b64url,
    consent_bytes,
    jwks,
    make_jws,
    registration_bytes,
    sign_consent,
    sign_registration,
    unb64url,
)

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


# The key of RFC 8037, appendix A: Ed25519 signatures are deterministic, so whole tokens can be golden.
KEY = ProviderKey(
    Ed25519PrivateKey.from_private_bytes(unb64url("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"))
)
STRANGER = ProviderKey.generate()
KEYS = jwks([KEY.public_key])


# --- golden bytes --------------------------------------------------------------------------------


def test_golden_chain() -> None:
    data = golden("chain")
    link = CHAIN_START
    assert link.hex() == data["start"]
    for seq, step in enumerate(data["links"]):
        link = chain_link(link, seq, Delta.model_validate(step["delta"]))
        assert link.hex() == step["link"]


@pytest.mark.parametrize("case", golden("answers"), ids=lambda case: case["sha256"][:8])
def test_golden_answers(case: dict[str, Any]) -> None:
    fields = case["answer"]
    answer = Answer(**{**fields, "tool_calls": tuple(fields["tool_calls"])})
    assert canonical_bytes(answer.as_dict()).decode() == case["canonical"]
    assert response_sha256(answer) == case["sha256"]


def test_golden_receipt() -> None:
    data = golden("receipt")
    receipt = verify_receipt(data["token"], data["jwks"])
    assert data["jwks"] == KEYS
    assert receipt_bytes(receipt).decode() == data["payload"]
    assert make_receipt(KEY, receipt) == data["token"]


def test_golden_status() -> None:
    data = golden("status")
    assert make_status(KEY, data["snapshot"]) == data["token"]
    assert verify_status(data["token"], KEYS) == data["snapshot"]


def test_golden_registration_and_consent() -> None:
    data = golden("registration")
    registration, consent = data["registration"], data["consent"]
    assert registration_bytes(**registration, public_key=KEY.public_key).decode() == data["canonical"]
    assert sign_registration(KEY, **registration) == data["signature"]
    assert consent_bytes(**consent).decode() == data["consent_canonical"]
    del consent["previous_public_key"]
    assert sign_consent(KEY, **consent) == data["consent_signature"]


# --- the chain -----------------------------------------------------------------------------------


def call_delta(index: int, name: str | None, arguments: str, call_id: str | None = None) -> Delta:
    function = FunctionDelta(name=name, arguments=arguments)
    return Delta(
        tool_calls=(
            ToolCallDelta(index=index, id=call_id, type="function" if call_id else None, function=function),
        )
    )


def test_deltas_that_differ_in_anything_have_different_links() -> None:
    deltas = [
        Delta(),
        Delta(content=""),
        Delta(reasoning_content=""),
        Delta(role="assistant"),
        Delta(content="ab"),
        Delta(reasoning_content="ab"),
        Delta(reasoning_content="a", content="b"),
        Delta(content="a", reasoning_content="b"),
        call_delta(0, None, "ab"),
        call_delta(1, None, "ab"),
        call_delta(0, "ab", ""),
        call_delta(0, "a", "b"),
        call_delta(0, None, "b", "a"),
        Delta(
            tool_calls=(
                *(call_delta(0, None, "a").tool_calls or ()),
                *(call_delta(0, None, "b").tool_calls or ()),
            )
        ),
    ]
    links = [chain_link(CHAIN_START, 0, delta) for delta in deltas]
    links += [chain_link(CHAIN_START, 1, deltas[0]), chain_link(links[0], 0, deltas[0])]
    assert len(set(links)) == len(links)


@given(st.lists(st.text(max_size=8), min_size=2, max_size=6), st.data())
def test_a_chain_fixes_content_order_and_cut(texts: list[str], data: st.DataObject) -> None:
    def ends(pieces: list[str]) -> bytes:
        link = CHAIN_START
        for seq, text in enumerate(pieces):
            link = chain_link(link, seq, Delta(content=text))
        return link

    at = data.draw(st.integers(0, len(texts) - 2))
    joined = [*texts[:at], texts[at] + texts[at + 1], *texts[at + 2 :]]
    assert ends(texts) != ends(joined)
    swapped = [*texts[:at], texts[at + 1], texts[at], *texts[at + 2 :]]
    assert (ends(texts) == ends(swapped)) == (texts == swapped)


# --- one job, answered in four ways --------------------------------------------------------------

REQUEST: dict[str, Any] = {
    "model": "org/Model",
    "messages": [{"role": "user", "content": "What is the secret of Grüße?"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "user": "me",
    "metadata": {"a": "b"},
    "temperature": None,
}
SAME: dict[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": "org/Model"}
USAGE = Usage(prompt_tokens=12, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
ROLE = Delta(role="assistant", content="")
TEXT = [ROLE, Delta(content="Hel\u2028"), Delta(content="lo\r\n"), Delta(content=" 🙂")]
REASONED = [ROLE, Delta(reasoning_content="Hm."), Delta(content="Hello")]
CALLS = [
    ROLE,
    Delta(content="Let me see. "),
    call_delta(0, "read_file", "", "call_" + "0" * 32),
    call_delta(0, None, "{"),
    call_delta(0, None, '"path": "a"}'),
]
REASONS = {"text": (TEXT, "stop"), "reasoned": (REASONED, "length"), "calls": (CALLS, "tool_calls")}


def make_job(
    deltas: list[Delta],
    finish_reason: str | None,
    *,
    answer: Answer | None = None,
    key: ProviderKey = KEY,
    terminal: Terminal = Terminal.COMPLETED,
) -> tuple[str, AnswerCollector]:
    """The receipt of a job that said these deltas, and their fold."""
    collector, link = AnswerCollector(), CHAIN_START
    for seq, delta in enumerate(deltas):
        collector.add(delta)
        link = chain_link(link, seq, delta)
    claims = Receipt(
        job_id="job_1",
        attempt=1,
        provider_id="prov_" + "a" * 26,
        model="org/Model",
        revision="r1",
        request_sha256=request_sha256(REQUEST),
        response_sha256=response_sha256(answer or collector.answer(finish_reason)),
        chain=link.hex(),
        chunks=len(deltas),
        terminal=terminal,
        finish_reason=None if finish_reason is None else FinishReason(finish_reason),
        usage=ReceiptUsage.of(USAGE),
        contract="malibu",
        issued_at_ms=1_700_000_000_000,
    )
    return make_receipt(key, claims), collector


def buffered(deltas: list[Delta], finish_reason: str) -> tuple[str, dict[str, Any]]:
    receipt, collector = make_job(deltas, finish_reason)
    body = chat_completion(
        **SAME, collector=collector, finish_reason=finish_reason, usage=USAGE, receipt=receipt
    )
    return receipt, json.loads(json.dumps(body))


def sse(events: list[dict[str, Any]]) -> str:
    lines = [": accepted\n\n"]
    lines += [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return "".join([*lines, ": keepalive\n\n", "data: [DONE]\n\n"])


def streamed(deltas: list[Delta], finish_reason: str, *, usage: bool = True) -> tuple[str, str]:
    receipt, _ = make_job(deltas, finish_reason)
    events = [chunk(**SAME, delta=delta, include_usage=usage) for delta in deltas]
    events.append(chunk(**SAME, finish_reason=finish_reason, receipt=receipt, include_usage=usage))
    if usage:
        events.append(usage_chunk(**SAME, usage=USAGE))
    return receipt, sse(events)


def named(result: Verification) -> list[str]:
    return [difference.value for difference in result.differences]


@pytest.mark.parametrize("kind", REASONS)
def test_a_true_receipt_is_valid_buffered_and_streamed(kind: str) -> None:
    receipt, body = buffered(*REASONS[kind])
    result = verify(receipt, REQUEST, body, KEYS)
    assert (result.verdict, named(result), result.chain_checked) == (Verdict.VALID, [], False)
    assert verify(receipt, json.dumps(REQUEST).encode(), json.dumps(body), KEYS).verdict is Verdict.VALID
    for usage in (True, False):
        receipt, text = streamed(*REASONS[kind], usage=usage)
        result = verify(receipt + "\n", REQUEST, text, KEYS)
        assert (result.verdict, named(result), result.chain_checked) == (Verdict.VALID, [], True)


def test_a_stream_is_read_with_any_line_end_and_behind_a_byte_order_mark() -> None:
    receipt, text = streamed(TEXT, "stop")
    for recorded in (
        text.replace("\n", "\r\n"),
        text.replace("\n", "\r"),
        "\ufeff" + text,
        text.rstrip("\n"),
    ):
        assert verify(receipt, REQUEST, recorded, KEYS).verdict is Verdict.VALID


def test_an_empty_answer_verifies() -> None:
    receipt, body = buffered([ROLE], "stop")
    assert body["choices"][0]["message"]["content"] == ""
    assert verify(receipt, REQUEST, body, KEYS).verdict is Verdict.VALID


def test_another_library_verifies_the_same_receipts() -> None:
    keys = KeySet([OKPKey.import_key(dict[str, str | list[str]](entry)) for entry in KEYS["keys"]])
    for deltas, finish_reason in REASONS.values():
        receipt, _ = make_job(deltas, finish_reason)
        read = jws.deserialize_compact(receipt, keys, algorithms=["Ed25519"])
        assert read.headers() == {"alg": "Ed25519", "kid": KEY.key_id, "typ": "malibu-receipt+jwt"}
        assert json.loads(read.payload or b"") == verify_receipt(receipt, KEYS).model_dump(mode="json")


def test_a_failed_stream_verifies_up_to_where_it_broke() -> None:
    receipt, _ = make_job(CALLS[:4], None, terminal=Terminal.FAILED)
    error = error_event(ApiError(ErrorCode.MALFORMED_TOOL_CALL, "m", inference_ran=True), "req_1", receipt)
    text = sse([*(chunk(**SAME, delta=delta) for delta in CALLS[:4]), error])
    result = verify(receipt, REQUEST, text, KEYS)
    assert (result.verdict, named(result), result.chain_checked) == (Verdict.VALID, [], True)


def test_a_failed_buffered_answer_verifies_as_no_answer() -> None:
    receipt, _ = make_job(CALLS, None, answer=NO_ANSWER, terminal=Terminal.FAILED)
    body = ApiError(ErrorCode.UPSTREAM_ERROR, "m", inference_ran=True).envelope("req_1")
    assert verify(receipt, REQUEST, body, KEYS).verdict is Verdict.VALID


def test_deltas_that_a_gateway_joined_for_a_slow_reader_still_verify() -> None:
    receipt, _ = make_job(TEXT, "stop")
    joined = [ROLE, Delta(content="".join(delta.content or "" for delta in TEXT))]
    text = sse([*(chunk(**SAME, delta=delta) for delta in joined), chunk(**SAME, finish_reason="stop")])
    result = verify(receipt, REQUEST, text, KEYS)
    assert (result.verdict, result.chain_checked) == (Verdict.VALID, False)


# --- tampering -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "path", "value", "expected"),
    [
        ("text", ("choices", 0, "message", "content"), "Hel\u2028lo\r\n 🙃", ["content"]),
        ("text", ("choices", 0, "message", "content"), None, ["content"]),
        ("text", ("choices", 0, "message", "reasoning_content"), "I was told to", ["reasoning_content"]),
        ("text", ("choices", 0, "finish_reason"), "length", ["finish_reason"]),
        ("text", ("model",), "org/Modem", ["model"]),
        ("text", ("usage", "prompt_tokens"), 13, ["usage"]),
        ("text", ("usage", "completion_tokens"), 8, ["usage"]),
        ("text", ("usage", "prompt_tokens_details", "cached_tokens"), 3, ["usage"]),
        ("text", ("usage", "prompt_tokens_details"), None, ["usage"]),
        ("reasoned", ("choices", 0, "message", "reasoning_content"), "Hm!", ["content", "reasoning_content"]),
        ("calls", ("choices", 0, "message", "tool_calls", 0, "function", "arguments"), "{}", ["tool_calls"]),
        ("calls", ("choices", 0, "message", "tool_calls", 0, "function", "name"), "rm", ["tool_calls"]),
        ("calls", ("choices", 0, "message", "tool_calls", 0, "id"), "call_1", ["tool_calls"]),
        ("calls", ("choices", 0, "message", "tool_calls"), [], ["tool_calls"]),
        ("calls", ("choices", 0, "message", "content"), "Let me see. ", ["content"]),
    ],
)
def test_a_changed_answer_is_named(
    kind: str, path: tuple[str | int, ...], value: object, expected: list[str]
) -> None:
    receipt, body = buffered(*REASONS[kind])
    at: Any = body
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    result = verify(receipt, REQUEST, body, KEYS)
    assert result.verdict is Verdict.INVALID
    assert named(result) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("Hel", "Hal", ["content", "chain"]),
        ("org/Model", "org/Modem", ["model"]),
        ('"completion_tokens": 7', '"completion_tokens": 70', ["usage"]),
        ('"finish_reason": "stop"', '"finish_reason": "length"', ["finish_reason"]),
        ('{"content": " 🙂"}', "{}", ["content"]),
    ],
)
def test_a_changed_stream_is_named(old: str, new: str, expected: list[str]) -> None:
    receipt, text = streamed(TEXT, "stop")
    assert old in text
    result = verify(receipt, REQUEST, text.replace(old, new), KEYS)
    assert (result.verdict, named(result)) == (Verdict.INVALID, expected)


def test_a_changed_call_in_a_stream_is_named() -> None:
    receipt, text = streamed(CALLS, "tool_calls")
    result = verify(receipt, REQUEST, text.replace("read_file", "reap_file"), KEYS)
    assert named(result) == ["tool_calls", "chain"]


def test_prose_beside_a_streamed_call_is_covered_by_the_chain_alone() -> None:
    receipt, text = streamed(CALLS, "tool_calls")
    assert named(verify(receipt, REQUEST, text.replace("Let me", "Let us"), KEYS)) == ["chain"]


def test_a_chunk_too_many_is_named() -> None:
    receipt, _ = make_job(TEXT, "stop")
    deltas = [*TEXT[:3], Delta(content=" "), Delta(content="🙂")]
    text = sse([*(chunk(**SAME, delta=delta) for delta in deltas), chunk(**SAME, finish_reason="stop")])
    assert named(verify(receipt, REQUEST, text, KEYS)) == ["chunks"]


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "user", "content": "What is the secret of Grüsse?"}]},
        {"temperature": 0},
        {"unknown": None, "tools": []},
    ],
)
def test_another_request_is_named(change: dict[str, Any]) -> None:
    receipt, body = buffered(TEXT, "stop")
    assert named(verify(receipt, {**REQUEST, **change}, body, KEYS)) == ["request"]


def test_what_the_receipt_does_not_cover_may_differ_in_the_request() -> None:
    receipt, body = buffered(TEXT, "stop")
    other = {**REQUEST, "stream": False, "stream_options": None, "user": "you", "top_p": None}
    assert verify(receipt, other, body, KEYS).verdict is Verdict.VALID


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"completion_tokens":7', '"completion_tokens":9', ["signature", "usage"]),
        ('"model":"org/Model"', '"model":"org/Modem"', ["signature", "model"]),
        ('"finish_reason":"stop"', '"finish_reason":"length"', ["signature", "finish_reason"]),
        ('"job_id":"job_1"', '"job_id":"job_2"', ["signature"]),
        ('"attempt":1', '"attempt":2', ["signature"]),
        ('"chunks":4', '"chunks":3', ["signature", "chunks"]),
    ],
)
def test_a_changed_receipt_is_named(old: str, new: str, expected: list[str]) -> None:
    receipt, text = streamed(TEXT, "stop")
    head, payload, signature = receipt.split(".")
    changed = unb64url(payload).decode()
    assert old in changed
    forged = f"{head}.{b64url(changed.replace(old, new).encode())}.{signature}"
    result = verify(forged, REQUEST, text, KEYS)
    assert (result.verdict, named(result)) == (Verdict.INVALID, expected)
    with pytest.raises(BadSignature):
        verify_receipt(forged, KEYS)


def test_every_changed_character_of_a_receipt_makes_it_invalid_or_unknown() -> None:
    receipt, body = buffered(TEXT, "stop")
    for at in range(0, len(receipt), 7):
        changed = receipt[:at] + ("A" if receipt[at] != "A" else "B") + receipt[at + 1 :]
        assert verify(changed, REQUEST, body, KEYS).verdict is not Verdict.VALID


def test_a_receipt_by_an_unknown_key_is_inconclusive_and_still_compared() -> None:
    receipt, collector = make_job(TEXT, "stop", key=STRANGER)
    body = chat_completion(**SAME, collector=collector, finish_reason="stop", usage=USAGE)
    result = verify(receipt, REQUEST, body, KEYS)
    assert (result.verdict, named(result), result.key_id) == (
        Verdict.INCONCLUSIVE,
        ["key"],
        STRANGER.key_id,
    )
    body["model"] = "x"
    result = verify(receipt, REQUEST, body, KEYS)
    assert (result.verdict, named(result)) == (Verdict.INCONCLUSIVE, ["key", "model"])
    assert verify(receipt, REQUEST, body, {"keys": []}).verdict is Verdict.INCONCLUSIVE
    with pytest.raises(UnknownKey):
        verify_receipt(receipt, KEYS)


def test_a_key_that_only_the_receipt_holds_proves_nothing() -> None:
    receipt, body = buffered(TEXT, "stop")
    payload = receipt.split(".")[1]
    header = {"alg": "Ed25519", "jwk": STRANGER.jwk, "kid": STRANGER.key_id, "typ": "malibu-receipt+jwt"}
    signed = f"{b64url(json.dumps(header).encode())}.{payload}"
    forged = f"{signed}.{b64url(STRANGER.sign(signed.encode()))}"
    assert verify(forged, REQUEST, body, KEYS).verdict is Verdict.INCONCLUSIVE


def test_receipts_from_before_a_rotation_stay_valid() -> None:
    receipt, body = buffered(TEXT, "stop")
    assert (
        verify(receipt, REQUEST, body, jwks([STRANGER.public_key, KEY.public_key])).verdict is Verdict.VALID
    )


def test_the_receipt_of_an_earlier_attempt_is_not_that_of_this_answer() -> None:
    """Each attempt mints its own call IDs, so even the same calls aren't the same answer."""
    other = call_delta(0, "read_file", "", "call_" + "1" * 32)
    earlier, _ = make_job([*CALLS[:2], other, *CALLS[3:]], "tool_calls")
    _, text = streamed(CALLS, "tool_calls")
    assert named(verify(earlier, REQUEST, text, KEYS)) == ["tool_calls", "chain"]


@pytest.mark.parametrize(
    "receipt",
    [
        "",
        "not a receipt",
        make_jws(KEY, "malibu-status+jwt", receipt_bytes(read_receipt(make_job(TEXT, "stop")[0])[1])),
        make_jws(KEY, "malibu-receipt+jwt", b"{}"),
        make_jws(KEY, "malibu-receipt+jwt", b'{"v":2}'),
        make_jws(KEY, "malibu-receipt+jwt", b"\xff"),
    ],
)
def test_what_is_no_receipt_is_named_so(receipt: str) -> None:
    _, body = buffered(TEXT, "stop")
    result = verify(receipt, REQUEST, body, KEYS)
    assert (result.verdict, named(result), result.receipt) == (Verdict.INVALID, ["receipt"], None)
    with pytest.raises(MalformedToken):
        verify_receipt(receipt, KEYS)


def test_the_result_is_json_and_quotes_neither_prompt_nor_answer() -> None:
    receipt, body = buffered(TEXT, "stop")
    body["choices"][0]["message"]["content"] = "SECRET ANSWER"
    result = verify(receipt, {**REQUEST, "x": "SECRET PROMPT"}, body, KEYS)
    text = json.dumps(result.as_dict())
    assert "SECRET" not in text
    assert json.loads(text)["verdict"] == "invalid"
    assert [entry["name"] for entry in json.loads(text)["differences"]] == ["request", "content"]
    assert json.loads(text)["receipt"]["job_id"] == "job_1"


@pytest.mark.parametrize(
    ("request_body", "response"),
    [
        (b"[]", {"error": {}}),
        (b"{", {"error": {}}),
        (b"\xff", {"error": {}}),
        ({"x": float("inf")}, {"error": {}}),
        ({"x": "\ud800"}, {"error": {}}),
        ({}, {}),
        ({}, "{"),
        ({}, "{}"),
        ({}, {"choices": []}),
        ({}, {"choices": [{"message": {"tool_calls": [{}]}, "finish_reason": None}], "model": "m"}),
        ({}, {"choices": [{"message": {"content": "\ud800"}, "finish_reason": None}], "model": "m"}),
        ({}, {"choices": [{"message": None}]}),
        ({}, ""),
        ({}, "<html>Bad gateway</html>"),
        ({}, "data: {\n\n"),
        ({}, "data: []\n\n"),
        ({}, 'data: {"x": 1}\n\n'),
        ({}, 'data: {"model": "m", "choices": [{"delta": {"content": 5}}]}\n\n'),
        ({}, 'data: {"model": [], "choices": []}\n\n'),
    ],
    ids=str,
)
def test_what_can_not_be_read_is_one_declared_error(request_body: Any, response: Any) -> None:
    receipt, _ = make_job(TEXT, "stop")
    with pytest.raises(UnreadableRecord):
        verify(receipt, request_body, response, KEYS)


@given(st.text() | st.text(alphabet='dat:{}[]" \n,choices').map(lambda text: "data: " + text))
def test_random_records_raise_nothing_else(response: str) -> None:
    receipt, _ = make_job(TEXT, "stop")
    try:
        result = verify(receipt, REQUEST, response, KEYS)
    except UnreadableRecord:
        return
    assert result.verdict is Verdict.INVALID


def test_an_answer_of_which_nothing_came_is_named_by_its_content() -> None:
    receipt, _ = make_job(TEXT, "stop")
    found = verify(receipt, REQUEST, ": accepted\n\n", KEYS).findings
    assert [finding.message for finding in found if finding.difference is Difference.CONTENT] == [
        "not what was signed"
    ]


def test_the_verdict_names_one_member_where_one_can_be_named() -> None:
    """Content and reasoning both there, but only one can be to blame."""
    receipt, body = buffered(TEXT, "stop")
    message = body["choices"][0]["message"]
    message["reasoning_content"] = "added"
    assert verify(receipt, REQUEST, body, KEYS).differences == (Difference.REASONING_CONTENT,)


# --- status --------------------------------------------------------------------------------------


def test_a_status_report_is_not_a_receipt_and_a_receipt_no_report() -> None:
    report = make_status(KEY, {"state": "ready"})
    with pytest.raises(MalformedToken):
        verify_receipt(report, KEYS)
    with pytest.raises(MalformedToken):
        verify_status(make_job(TEXT, "stop")[0], KEYS)
    with pytest.raises(MalformedToken):
        verify_status(make_jws(KEY, "malibu-status+jwt", b"[]"), KEYS)
    with pytest.raises(UnknownKey):
        verify_status(make_status(STRANGER, {}), KEYS)


def test_answer_forms_are_immutable_values() -> None:
    answer = AnswerCollector().answer("stop")
    assert replace(answer, finish_reason=None) == NO_ANSWER
