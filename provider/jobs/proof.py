"""One job's proof: each piece becomes a chunk with its link of the chain, the end becomes a signed receipt.

No I/O: the key is in memory and the wall clock is handed in. docs/protocol.md, "Receipts".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway_protocol.completion import NO_ANSWER, Answer, AnswerCollector, logprobs_of
from gateway_protocol.errors import ApiError
from gateway_protocol.messages import FinishReason, JobChunk, JobCompleted, JobError, JobFailed, Usage
from gateway_protocol.openai_types import Contract
from gateway_protocol.receipts import (
    CHAIN_START,
    Receipt,
    ReceiptUsage,
    Terminal,
    chain_link,
    make_receipt,
    response_sha256,
)
from gateway_protocol.session.job_frames import JobFrame
from gateway_protocol.signing import ProviderKey
from provider.jobs.pieces import Piece, delta_of


@dataclass(slots=True)
class Signer:
    """Who signs. `key` may be replaced (rotation). `wall_ms`: milliseconds since the epoch."""

    key: ProviderKey
    provider_id: str
    contract: Contract
    wall_ms: Callable[[], int]


Frame = Callable[[JobFrame], str]
"""A job's next frame, noted in the ledger and encoded."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the receipt is about. `buffered`: after an error the buyer gets nothing of the output."""

    job_id: str
    attempt: int
    model: str
    revision: str | None
    request_sha256: str
    buffered: bool


class JobProof:
    """Chain and answer grow with each sealed piece; one of `completed` and `failed` ends it."""

    def __init__(self, subject: Subject, signer: Signer, frame: Frame) -> None:
        self._subject = subject
        self._frame = frame
        self._signer = signer
        self._chain = CHAIN_START
        self._answer = AnswerCollector()

    def seal(self, seq: int, piece: Piece) -> str:
        """The encoded `job_chunk` number `seq` (they come in order, each once)."""
        delta = delta_of(piece)
        self._chain = chain_link(self._chain, seq, delta)
        self._answer.add(delta)
        chunk = JobChunk(
            job_id=self._subject.job_id,
            attempt=self._subject.attempt,
            seq=seq,
            delta=delta,
            logprobs=None if piece.logprobs is None else logprobs_of(piece.logprobs),
            chain=self._chain.hex(),
        )
        return self._frame(chunk)

    def completed(self, chunks: int, finish_reason: FinishReason, usage: Usage) -> str:
        """The encoded `job_completed`, after `chunks` chunks."""
        answer = self._answer.answer(finish_reason)
        return self._frame(
            JobCompleted(
                job_id=self._subject.job_id,
                attempt=self._subject.attempt,
                seq=chunks,
                finish_reason=finish_reason,
                usage=usage,
                receipt=self._receipt(Terminal.COMPLETED, chunks, answer, finish_reason, usage),
            )
        )

    def failed(self, chunks: int, error: ApiError, usage: Usage | None, *, cancelled: bool) -> str:
        """The encoded `job_failed`. A receipt is in it where inference ran."""
        receipt = None
        if error.inference_ran and usage is not None:
            answer = NO_ANSWER if self._subject.buffered else self._answer.answer(None)
            terminal = Terminal.CANCELLED if cancelled else Terminal.FAILED
            receipt = self._receipt(terminal, chunks, answer, None, usage)
        return self._frame(
            JobFailed(
                job_id=self._subject.job_id,
                attempt=self._subject.attempt,
                seq=chunks,
                error=JobError.of(error),
                usage=usage,
                receipt=receipt,
            )
        )

    def _receipt(
        self, terminal: Terminal, chunks: int, answer: Answer, reason: FinishReason | None, usage: Usage
    ) -> str:
        subject, signer = self._subject, self._signer
        return make_receipt(
            signer.key,
            Receipt(
                job_id=subject.job_id,
                attempt=subject.attempt,
                provider_id=signer.provider_id,
                model=subject.model,
                revision=subject.revision,
                request_sha256=subject.request_sha256,
                response_sha256=response_sha256(answer),
                chain=self._chain.hex(),
                chunks=chunks,
                terminal=terminal,
                finish_reason=reason,
                usage=ReceiptUsage.of(usage),
                contract=signer.contract,
                issued_at_ms=signer.wall_ms(),
            ),
        )
