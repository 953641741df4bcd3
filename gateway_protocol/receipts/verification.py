"""Is this the receipt of that request and that answer? What differs is named.

    receipt ─JWKS─▶ claims ─compare─▶ request, model, finish_reason, members of the answer, usage, chain

A key that stands only inside the receipt proves nothing: without the provider's key from elsewhere the result
is inconclusive, whatever the hashes say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from gateway_protocol import strict_json
from gateway_protocol.answer import Answer
from gateway_protocol.keys import BadSignature, MalformedToken, UnknownKey
from gateway_protocol.messages import FinishReason
from gateway_protocol.receipts.forms import (
    Receipt,
    read_receipt,
    request_sha256,
    response_sha256,
    verify_receipt,
)
from gateway_protocol.receipts.recorded import RecordedResponse, UnreadableRecord, read_response


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    INCONCLUSIVE = "inconclusive"


class Difference(StrEnum):
    """What can differ. `KEY`: the signing key isn't known; `RECEIPT`: not a receipt at all."""

    RECEIPT = "receipt"
    KEY = "key"
    SIGNATURE = "signature"
    REQUEST = "request"
    MODEL = "model"
    CONTENT = "content"
    REASONING_CONTENT = "reasoning_content"
    TOOL_CALLS = "tool_calls"
    FINISH_REASON = "finish_reason"
    USAGE = "usage"
    CHAIN = "chain"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, with words for the reader; neither prompt nor answer is quoted."""

    difference: Difference
    message: str


@dataclass(frozen=True, slots=True)
class Verification:
    """`receipt`: the claims, if readable. `chain_checked`: the record shows the chunks as they were made."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    receipt: Receipt | None
    key_id: str | None
    chain_checked: bool

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(finding.difference for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "verdict": self.verdict.value,
            "differences": [
                {"name": finding.difference.value, "message": finding.message} for finding in self.findings
            ],
            "key_id": self.key_id,
            "chain_checked": self.chain_checked,
            "receipt": None if self.receipt is None else self.receipt.model_dump(mode="json"),
        }


def verify(
    receipt: str,
    request: Mapping[str, Any] | bytes | str,
    response: Mapping[str, Any] | str,
    keys: Mapping[str, Any],
) -> Verification:
    """Compare a receipt with the request body, the answer and a JWK Set of known provider keys.

    `response`: a completion, an error body, or the text of a recorded stream. Raises `UnreadableRecord` when
    the request or the response can't be read; a receipt that can't be is a finding.
    """
    body = _request_body(request)
    recorded = read_response(response)
    try:
        key_id, claims = read_receipt(receipt.strip())
    except MalformedToken as error:
        return Verification(
            Verdict.INVALID, (Finding(Difference.RECEIPT, str(error)),), None, None, chain_checked=False
        )
    findings = _signature_findings(receipt.strip(), keys)
    unknown_key = any(finding.difference is Difference.KEY for finding in findings)
    try:
        findings += _request_findings(claims, body)
        findings += _answer_findings(claims, recorded)
    except ValueError:
        raise UnreadableRecord("the request or the response has no canonical form") from None
    chain_checked = recorded.chunks == claims.chunks
    findings += _chain_findings(claims, recorded)
    verdict = Verdict.INVALID if findings else Verdict.VALID
    return Verification(
        Verdict.INCONCLUSIVE if unknown_key else verdict, tuple(findings), claims, key_id, chain_checked
    )


def _request_body(request: Mapping[str, Any] | bytes | str) -> dict[str, Any]:
    if isinstance(request, Mapping):
        return dict(request)
    try:
        body = strict_json.loads(request)
    except strict_json.JsonError:
        body = None
    if not isinstance(body, dict):
        raise UnreadableRecord("the request is not a JSON object")
    return body


def _signature_findings(token: str, keys: Mapping[str, Any]) -> list[Finding]:
    try:
        verify_receipt(token, keys)
    except UnknownKey as error:
        return [Finding(Difference.KEY, f"key {error.key_id} is not among the known keys")]
    except BadSignature:
        return [Finding(Difference.SIGNATURE, "the receipt was changed after it was signed")]
    return []


def _request_findings(claims: Receipt, body: dict[str, Any]) -> list[Finding]:
    if request_sha256(body) == claims.request_sha256:
        return []
    return [Finding(Difference.REQUEST, "the receipt is for another request")]


def _answer_findings(claims: Receipt, recorded: RecordedResponse) -> list[Finding]:
    found: list[Finding] = []
    if recorded.models - {claims.model}:
        found.append(Finding(Difference.MODEL, f"the receipt says {claims.model}"))
    answer = recorded.answer
    as_signed = response_sha256(answer) == claims.response_sha256
    claimed_reason = None if claims.finish_reason is None else claims.finish_reason.value
    if answer.finish_reason != claimed_reason:
        found.append(Finding(Difference.FINISH_REASON, f"the receipt says {claimed_reason or 'none'}"))
        answer = replace(answer, finish_reason=claimed_reason)
    if not as_signed and response_sha256(answer) != claims.response_sha256:
        found += _differing_members(claims, answer)
    if recorded.usage is not None and recorded.usage != claims.usage:
        counts = ", ".join(f"{name} {count}" for name, count in claims.usage.model_dump().items())
        found.append(Finding(Difference.USAGE, f"the receipt says {counts}"))
    return found


_MEMBERS = (Difference.CONTENT, Difference.REASONING_CONTENT, Difference.TOOL_CALLS)


def _differing_members(claims: Receipt, answer: Answer) -> list[Finding]:
    """Which members an answer of another hash must differ in: one hash covers all, so blame what is there.

    Where several are there, one whose removal makes the hash right is to blame alone; else any may be.
    """
    present = [member for member in _MEMBERS if getattr(answer, member.value)]
    if claims.finish_reason is FinishReason.TOOL_CALLS and not answer.tool_calls:
        present = [Difference.TOOL_CALLS]
    for member in present if len(present) > 1 else ():
        empty: Any = () if member is Difference.TOOL_CALLS else None
        if response_sha256(replace(answer, **{member.value: empty})) == claims.response_sha256:
            present = [member]
            break
    names = " or ".join(present)
    return [
        Finding(member, f"{names} is not what was signed" if len(present) > 1 else "not what was signed")
        for member in present or [Difference.CONTENT]
    ]


def _chain_findings(claims: Receipt, recorded: RecordedResponse) -> list[Finding]:
    """A gateway may join deltas for a slow reader: fewer chunks than signed show nothing, more can't be."""
    if recorded.chunks is None or recorded.chunks < claims.chunks:
        return []
    if recorded.chunks > claims.chunks:
        return [Finding(Difference.CHUNKS, f"the receipt says {claims.chunks}, the record {recorded.chunks}")]
    if recorded.chain != claims.chain:
        return [Finding(Difference.CHAIN, "the pieces of the stream are not those that were signed")]
    return []
