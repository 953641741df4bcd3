"""From tokens to pieces with the real interpreter: stop strings, logprobs, reasoning, calls, counts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_protocol.codec import encode
from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.limits import DELTA_TEXT_BYTES, FRAME_FROM_PROVIDER_BYTES
from gateway_protocol.messages import FinishReason
from gateway_protocol.signing import ProviderKey
from provider.engine.base import Token, TokenLogprob
from provider.jobs.pieces import Piece, PieceKind
from provider.jobs.pipeline import JobPipeline
from provider.jobs.proof import JobProof, Signer, Subject
from provider.toolcalls import CallPolicy, OutputInterpreter, split_special

TOOLS: dict[str, Any] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


def tokens(text: str, size: int = 4, family: Family = Family.QWEN, *, logprobs: bool = False) -> list[Token]:
    found = []
    for part, token_id in split_special(family, text):
        pieces = [part] if token_id is not None else [part[i : i + size] for i in range(0, len(part), size)]
        for piece in pieces:
            logprob = TokenLogprob(piece, piece.encode(), -0.5) if logprobs else None
            found.append(Token(piece, token_id or 0, logprob, (logprob,) if logprob else ()))
    return found


def pipeline(
    *,
    family: Family = Family.QWEN,
    stop: tuple[str, ...] = (),
    include_reasoning: bool = False,
    logprobs: bool = False,
    **policy: Any,
) -> JobPipeline:
    rules = {"family": family, "think": ("<think>", "</think>"), "delivery": "whole"} | policy
    return JobPipeline(
        OutputInterpreter(CallPolicy(**rules)),
        stop=stop,
        include_reasoning=include_reasoning,
        logprobs=logprobs,
    )


def run(pipe: JobPipeline, found: list[Token], *, cause: Any = "stop", batch: int = 1) -> list[Piece]:
    pieces: list[Piece] = []
    for start in range(0, len(found), batch):
        if pipe.done:
            break
        pieces += pipe.feed(found[start : start + batch])
    if not pipe.done:
        pieces += pipe.finish(cause)
    return pieces


def text_of(pieces: list[Piece], kind: PieceKind = PieceKind.TEXT) -> str:
    return "".join(piece.text for piece in pieces if piece.kind is kind)


def test_the_first_piece_opens_the_answer() -> None:
    pipe = pipeline()
    pieces = run(pipe, tokens("Hello, world"))
    assert [piece.kind for piece in pieces] == [PieceKind.ROLE] + [PieceKind.TEXT] * 3
    assert (pipe.finish_reason, pipe.error, pipe.completion_tokens) == (FinishReason.STOP, None, 3)


def test_an_empty_answer_is_an_answer() -> None:
    pipe = pipeline()
    assert [piece.kind for piece in run(pipe, [])] == [PieceKind.ROLE]
    assert (pipe.finish_reason, pipe.completion_tokens) == (FinishReason.STOP, 0)


def test_one_token_one_piece_unless_told_to_join() -> None:
    found = tokens("abcdefgh" * 40)
    apart, joined = pipeline(), pipeline()
    assert len(apart.feed(found)) == 81
    assert [piece.kind for piece in joined.feed(found, joined=True)] == [PieceKind.ROLE, PieceKind.TEXT]


def test_stop_strings_in_content_alone() -> None:
    pipe = pipeline(stop=("END",), include_reasoning=True)
    pieces = run(pipe, tokens("<think>not the END yet</think>this is the END of it"))
    assert text_of(pieces, PieceKind.REASONING) == "not the END yet"
    assert text_of(pieces) == "this is the "
    assert pipe.finish_reason is FinishReason.STOP
    assert pipe.done


def test_stop_strings_not_in_calls() -> None:
    pipe = pipeline(stop=("Bern",), tools=TOOLS)
    pieces = run(pipe, tokens(CALL))
    assert text_of(pieces, PieceKind.CALL) == "get_weather"
    assert text_of(pieces, PieceKind.ARGUMENTS) == '{"city": "Bern"}'
    assert pipe.finish_reason is FinishReason.TOOL_CALLS


def test_what_may_become_a_stop_string_goes_before_a_call() -> None:
    pipe = pipeline(stop=("word up",), tools=TOOLS)
    pieces = run(pipe, tokens("My word " + CALL, 1))
    kinds = [kind for kind, _ in itertools.groupby(piece.kind for piece in pieces)]
    assert kinds == [PieceKind.ROLE, PieceKind.TEXT, PieceKind.CALL, PieceKind.ARGUMENTS]
    assert text_of(pieces).startswith("My word")


@given(st.text("abEND ", max_size=60), st.integers(1, 9), st.integers(1, 30))
def test_batches_and_cuts_change_nothing(text: str, size: int, batch: int) -> None:
    one, other = pipeline(stop=("END", "a b")), pipeline(stop=("END", "a b"))
    reference = run(one, tokens(text, 1))
    assert text_of(run(other, tokens(text, size), batch=batch)) == text_of(reference)
    assert one.finish_reason == other.finish_reason


XML_CALL = "<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n</function>"
FRAGMENTS = {
    Family.QWEN: (CALL, f"<tool_call>{XML_CALL}</tool_call>", "<think>", "</think>", "<tool", "{", "```\n"),
    Family.LLAMA: ('{"name": "get_weather", "parameters": {"city": "Bern"}}', "<|python_tag|>", "{", "; "),
    Family.GPT_OSS: (
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant",
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "Bern"}<|call|>',
    ),
}
PLAIN = ("so ", "the harbour", " is", " quiet ", ".", "漢字", "\n", " ", "a < b")


@given(st.data(), st.sampled_from(sorted(FRAGMENTS)), st.booleans())
def test_tokens_that_come_together_say_the_same(data: st.DataObject, family: Family, parallel: bool) -> None:
    fragment = st.one_of(st.sampled_from(PLAIN), st.sampled_from(PLAIN + FRAGMENTS[family]))
    text = "".join(data.draw(st.lists(fragment, max_size=12)))
    found = tokens(text, data.draw(st.integers(1, 9)), family)
    batch = data.draw(st.integers(2, 30))
    rules: dict[str, Any] = {
        "family": family,
        "tools": data.draw(st.sampled_from(({}, TOOLS))),
        "contract": data.draw(st.sampled_from(("malibu", "strict"))),
        "delivery": data.draw(st.sampled_from(("whole", "incremental", "buffered"))),
        "parallel": parallel,
        "include_reasoning": True,
    }
    ends = []
    for joined in (False, True):
        pipe = pipeline(**rules)
        pieces: list[Piece] = []
        for start in range(0, len(found), batch):
            if not pipe.done:
                pieces += pipe.feed(found[start : start + batch], joined=joined)
        if not pipe.done:
            pieces += pipe.finish("stop")
        told = [
            (kind, "".join(piece.text for piece in run))
            for kind, run in itertools.groupby(pieces, key=lambda piece: piece.kind)
        ]
        error = None if pipe.error is None else pipe.error.code
        ends.append((told, pipe.finish_reason, error, pipe.completion_tokens, pipe.reasoning_tokens))
    assert ends[0] == ends[1]


def test_reasoning_counts_whether_it_is_shown_or_not() -> None:
    text = "<think>hmm, let me see</think>yes"
    shown, hidden = pipeline(include_reasoning=True), pipeline()
    pieces = run(shown, tokens(text))
    assert text_of(pieces, PieceKind.REASONING) == "hmm, let me see"
    assert not text_of(run(hidden, tokens(text)), PieceKind.REASONING)
    assert shown.completion_tokens == hidden.completion_tokens == len(tokens(text))
    assert shown.reasoning_tokens == hidden.reasoning_tokens
    assert len(tokens(text)) - 3 < shown.reasoning_tokens < len(tokens(text))


def test_nothing_is_counted_after_the_call_that_stops() -> None:
    pipe = pipeline(tools=TOOLS)
    found = tokens(CALL)
    pieces = run(pipe, [*found, *tokens("and so on and on")], batch=1000)
    assert pipe.done
    assert pipe.completion_tokens == len(found)
    assert text_of(pieces, PieceKind.ARGUMENTS) == '{"city": "Bern"}'


def test_strict_listens_for_a_second_call_without_counting_it() -> None:
    rules: dict[str, Any] = {"tools": TOOLS, "contract": "strict", "parallel": False}
    good, bad = pipeline(**rules), pipeline(**rules)
    found = tokens(CALL)
    good.feed(found)
    assert good.stop_wanted
    assert not good.done
    good.finish("stop")
    assert (good.finish_reason, good.completion_tokens) == (FinishReason.TOOL_CALLS, len(found))
    run(bad, [*found, *found])
    assert bad.error is not None
    assert bad.error.code is ErrorCode.UPSTREAM_ERROR
    assert bad.error.inference_ran
    assert bad.completion_tokens == len(found)


def test_a_malformed_call_is_text_before_anything_is_out() -> None:
    text = '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'
    pieces = run(pipeline(tools=TOOLS), tokens(text))
    assert text_of(pieces) == text


def test_long_text_is_split_between_code_points() -> None:
    text = "漢字🙂" * 40_000
    pieces = run(pipeline(), tokens(text, 200_000))
    assert text_of(pieces) == text
    assert all(len(piece.text.encode()) <= DELTA_TEXT_BYTES for piece in pieces)


def listed(pieces: list[Piece]) -> list[str]:
    return [entry["token"] for piece in pieces for entry in piece.logprobs or ()]


def test_logprobs_are_those_of_visible_content() -> None:
    text = "<think>secret</think>Hello, world"
    pieces = run(pipeline(logprobs=True), tokens(text, 3, logprobs=True))
    assert "".join(listed(pieces)) == "Hello, world"
    assert all(piece.logprobs is None for piece in pieces if piece.kind is not PieceKind.TEXT)
    entry = next(piece.logprobs for piece in pieces if piece.logprobs)[0]
    assert entry == {
        "token": "Hel",
        "logprob": -0.5,
        "bytes": [72, 101, 108],
        "top_logprobs": [{"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]}],
    }


def test_logprobs_end_where_the_stop_string_begins() -> None:
    pieces = run(pipeline(logprobs=True, stop=("wor",)), tokens("Hello, world", 3, logprobs=True))
    assert text_of(pieces) == "Hello, "
    # "wo" begins inside the token ", w", whose first character was delivered.
    assert listed(pieces) == ["Hel", "lo,", " wo"]


def test_a_token_without_text_goes_with_its_code_point() -> None:
    emoji = "🙂"
    halves = [
        Token("", 1, TokenLogprob("", emoji.encode()[:2], -1.0)),
        Token(emoji, 2, TokenLogprob("", emoji.encode()[2:], -2.0)),
    ]
    pieces = run(pipeline(logprobs=True), [*tokens("Hi ", logprobs=True), *halves])
    assert text_of(pieces) == f"Hi {emoji}"
    raw = b"".join(bytes(e["bytes"]) for p in pieces for e in p.logprobs or ())
    assert raw.decode() == f"Hi {emoji}"


def test_logprobs_of_an_answer_that_comes_at_once_fit_their_frames() -> None:
    # Held as a call, then plain text after all: thousands of tokens, each with twenty alternatives.
    text = (
        '<tool_call>\n{"name": "unknown", "arguments": {"x": "' + "漢字 words " * 2_000 + '"}}\n</tool_call>'
    )
    alternatives = tuple(TokenLogprob("alternative", b"alternative", -1.5) for _ in range(20))
    found = [token._replace(top_logprobs=alternatives) for token in tokens(text, 2, logprobs=True)]
    pieces = run(pipeline(logprobs=True, tools=TOOLS), found)
    assert text_of(pieces) == text
    assert "".join(listed(pieces)) == text
    signer = Signer(ProviderKey.generate(), "prov_x", "malibu", lambda: 0)
    subject = Subject("j", 1, "m", None, "0" * 64, buffered=False)
    proof = JobProof(subject, signer, encode)
    assert all(len(proof.seal(seq, piece)) < FRAME_FROM_PROVIDER_BYTES for seq, piece in enumerate(pieces))


def test_no_logprobs_beside_a_call() -> None:
    pieces = run(pipeline(logprobs=True, tools=TOOLS), tokens(CALL, logprobs=True))
    assert listed(pieces) == []


@pytest.mark.parametrize("delivery", ["whole", "incremental", "buffered"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 1000])
def test_every_delivery_gives_the_same_call(delivery: str, size: int) -> None:
    pipe = pipeline(tools=TOOLS, delivery=delivery)
    pieces = run(pipe, tokens(CALL, size))
    assert json.loads(text_of(pieces, PieceKind.ARGUMENTS)) == {"city": "Bern"}
    assert pipe.finish_reason is FinishReason.TOOL_CALLS
    call = next(piece for piece in pieces if piece.kind is PieceKind.CALL)
    assert call.call_id.startswith("call_")


def test_length_cuts_a_call() -> None:
    pipe = pipeline(tools=TOOLS)
    pieces = run(pipe, tokens(CALL[:40]), cause="length")
    assert pipe.finish_reason is FinishReason.LENGTH
    assert text_of(pieces) == CALL[:40]
