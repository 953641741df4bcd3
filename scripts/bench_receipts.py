"""What proving an answer costs, and the whole way of a token from the engine's event to the SSE line, in µs.

    .venv/bin/python scripts/bench_receipts.py [--json] [--tokens N]

Everything is pure code in one process: no engine, no socket. The whole way is: token event → interpreter →
piece → chunk with its link of the chain → frame → decoded, checked, folded → SSE line. Each figure is the
best of several rounds, so that other work on the machine counts as little as possible.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from gateway_protocol.answer import AnswerCollector
from gateway_protocol.answer_check import AnswerBounds, AnswerCheck
from gateway_protocol.codec import decode_from_provider, encode
from gateway_protocol.families import Family
from gateway_protocol.messages import (
    Capacity,
    Challenge,
    Delta,
    FinishReason,
    JobAccepted,
    JobChunk,
    JobCompleted,
    JobOffer,
    Machine,
    Register,
    Registered,
    Software,
    Usage,
)
from gateway_protocol.receipts import CHAIN_START, chain_link, request_sha256, verify, verify_receipt
from gateway_protocol.session import GatewayJobs, GatewaySession, ProviderJobs, events
from gateway_protocol.session.job_frames import JobFrame
from gateway_protocol.signing import ProviderKey, jwks, mint_provider_id
from provider.engine.base import Token
from provider.jobs.outbox import Outbox
from provider.jobs.pipeline import JobPipeline
from provider.jobs.proof import JobProof, Signer, Subject
from provider.local_gateway.sse import ChunkWriter
from provider.toolcalls import CallPolicy, OutputInterpreter

ROUNDS = 5
TOKENS_PER_S = 100
WORDS = ("The", " sea", " is", " salty", ",", " because", " rivers", " carry", " grüße", ".\n")
JOB_ID = "job_0123456789abcdef0123456789abcdef"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench_receipts.py")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of the measured answer (4000)")
    options = parser.parse_args()
    figures = measure(max(100, options.tokens))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:<36} {value:>10}")
    return 0


def measure(tokens: int) -> dict[str, float]:
    """All figures by name; the unit is the end of the name."""
    delta = Delta(content=" because")
    chunk = JobChunk(job_id=JOB_ID, attempt=1, seq=17, delta=delta, chain="a" * 64)
    frame = encode(chunk)
    whole = min((WholeWay(tokens) for _ in range(ROUNDS)), key=lambda way: way.token_us)
    chain_us = best_us(lambda: chain_link(CHAIN_START, 17, delta))
    collect_us = best_us(lambda: AnswerCollector().add(delta))
    receipt_us = min(way.receipt_us for way in (whole, WholeWay(tokens)))
    proof_us = chain_us + collect_us + receipt_us / tokens
    return {
        "chain_us_per_token": round(chain_us, 2),
        "receipt_make_us": round(receipt_us, 1),
        "receipt_check_us": round(best_us(lambda: verify_receipt(whole.receipt, whole.keys), 200), 1),
        "receipt_verify_us": round(best_us(whole.verify, 3), 1),
        "answer_check_us_per_token": round(best_us(lambda: whole.check.delta(delta)), 2),
        "job_chunk_encode_us": round(best_us(lambda: encode(chunk)), 2),
        "job_chunk_decode_us": round(best_us(lambda: decode_from_provider(frame)), 2),
        "proof_us_per_token": round(proof_us, 2),
        f"proof_percent_at_{TOKENS_PER_S}_tokens_per_s": round(proof_us * TOKENS_PER_S / 1e6 * 100, 4),
        "engine_event_to_sse_us_per_token": round(whole.token_us, 1),
    }


def best_us(call: Callable[[], object], number: int = 5000) -> float:
    """Microseconds of one call, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(number):
            call()
        best = min(best, time.perf_counter() - began)
    return best / number * 1e6


class WholeWay:
    """One answer of plain text through everything that touches a token, measured when made."""

    def __init__(self, tokens: int) -> None:
        self._key = ProviderKey.generate()
        self.keys = jwks([self._key.public_key])
        self._request = {"model": "org/Model", "messages": [{"role": "user", "content": "Why?"}]}
        self._jobs, self._gateway = ProviderJobs(), open_gateway()
        self._gateway.send(JobOffer(job_id=JOB_ID, attempt=1, request=self._request, deadline_ms=1))
        self._jobs.open(JOB_ID, 1)
        self._writer = ChunkWriter(id="chatcmpl-1", created=1, model="org/Model", include_usage=False)
        self.check = AnswerCheck(AnswerBounds(frozenset(), False, True, False, 1 << 20, 1 << 20))
        self._collector = AnswerCollector()
        self._stream: list[bytes] = []
        self._proof = JobProof(self._subject(), self._signer(), self._frame)
        self._outbox = Outbox()
        self._outbox.open(JOB_ID, 1, self._proof.seal)
        self._outbox.accept(JOB_ID, self._frame(JobAccepted(job_id=JOB_ID, attempt=1, prompt_tokens=9)))
        self.token_us = self._say(tokens)
        self.receipt_us, self.receipt = self._finish(tokens)

    def verify(self) -> None:
        """Verify the recorded stream against its receipt, as a buyer does."""
        result = verify(self.receipt, self._request, b"".join(self._stream).decode(), self.keys)
        assert result.verdict == "valid", result.findings

    def _subject(self) -> Subject:
        return Subject(JOB_ID, 1, "org/Model", None, request_sha256(self._request), buffered=False)

    def _signer(self) -> Signer:
        return Signer(self._key, mint_provider_id(), "malibu", lambda: 1_700_000_000_000)

    def _frame(self, frame: JobFrame) -> str:
        self._jobs.made(frame)
        return encode(frame)

    def _say(self, tokens: int) -> float:
        pipeline = JobPipeline(OutputInterpreter(CallPolicy(family=Family.QWEN)))
        began = time.perf_counter()
        for number in range(tokens):
            self._outbox.append(JOB_ID, pipeline.feed([Token(WORDS[number % len(WORDS)], number)]))
            self._pump()
        spent = time.perf_counter() - began
        self._outbox.append(JOB_ID, pipeline.finish("stop"))
        self._pump()
        return spent / tokens * 1e6

    def _pump(self) -> None:
        while (frame := self._outbox.next_frame()) is not None:
            for event in self._gateway.receive_frame(frame):
                if isinstance(event, events.ChunkReceived):
                    self.check.delta(event.chunk.delta)
                    self._collector.add(event.chunk.delta)
                    self._stream.append(self._writer.delta(event.chunk.delta))

    def _finish(self, tokens: int) -> tuple[float, str]:
        usage = Usage(prompt_tokens=9, completion_tokens=tokens)
        chunks = self._outbox.job(JOB_ID).next_seq
        began = time.perf_counter()
        frame = self._proof.completed(chunks, FinishReason.STOP, usage)
        spent = time.perf_counter() - began
        for event in self._gateway.receive_frame(frame):
            if isinstance(event, events.JobEnded) and isinstance(event.terminal, JobCompleted):
                self._stream.append(self._writer.finish(FinishReason.STOP, event.terminal.receipt))
                return spent * 1e6, event.terminal.receipt
        raise AssertionError("the job did not end")


def open_gateway() -> GatewaySession:
    """A gateway's session with one registered provider."""
    session = GatewaySession()
    session.send(Challenge(protocol_versions=(1,), gateway_id="g", nonce="n", time_ms=0))
    register = Register(
        protocol_version=1,
        provider_id=mint_provider_id(),
        public_key="k",
        signature="s",
        software=Software(name="malibu-provider", version="0"),
        machine=Machine(),
        models=(),
        capacity=Capacity(slots=1),
        contract="malibu",
    )
    session.receive(register)
    admission = session.admit(register, GatewayJobs())
    session.send(
        Registered(session_id="s", heartbeat_interval_ms=1, resume_window_ms=1, resume=admission.resume)
    )
    return session


if __name__ == "__main__":
    raise SystemExit(main())
