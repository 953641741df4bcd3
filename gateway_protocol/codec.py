"""Frames of the link: one JSON object in one text frame, sized by direction.

    encode(message) ─▶ text                       raises FrameError(too_large) at the sender
    decode_from_…(text) ─▶ message                a known type, every field checked
                        ─▶ UnknownMessage(type)   a newer peer's type: ignore it
                        ─▶ raises FrameError      answer with `error.nack()`; the session goes on

Sizes are UTF-8 bytes (docs/protocol.md: 16 MiB from the gateway, 1 MiB from the provider); text is not
ASCII-escaped. No error message repeats anything that a frame held, except names of fields.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway_protocol.errors import ProtocolError
from gateway_protocol.limits import FRAME_FROM_GATEWAY_BYTES, FRAME_FROM_PROVIDER_BYTES, JOB_ID_PATTERN
from gateway_protocol.messages import FromGateway, FromProvider, Nack, NackCode, Wire

_FROM_GATEWAY: Final[TypeAdapter[FromGateway]] = TypeAdapter(FromGateway)
_FROM_PROVIDER: Final[TypeAdapter[FromProvider]] = TypeAdapter(FromProvider)
_GATEWAY_MESSAGES: Final = frozenset(get_args(get_args(FromGateway)[0])) - {Nack}
_PROVIDER_MESSAGES: Final = frozenset(get_args(get_args(FromProvider)[0])) - {Nack}
_GATEWAY_TYPES: Final = frozenset(str(m.model_fields["type"].default) for m in _GATEWAY_MESSAGES)
_PROVIDER_TYPES: Final = frozenset(str(m.model_fields["type"].default) for m in _PROVIDER_MESSAGES)
# What a type may look like to count as a newer peer's; anything else is malformed.
_TYPE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_JOB_ID: Final = re.compile(rf'"job_id"\s*:\s*"({JOB_ID_PATTERN})"')
_ATTEMPT: Final = re.compile(r'"attempt"\s*:\s*([1-9][0-9]{0,8})(?![0-9.eE])')
Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class UnknownMessage:
    """A frame of a type that this side doesn't know: tolerated, with no effect."""

    type: str


class FrameError(ProtocolError):
    """A frame that can't be acted upon. `in_reply_to`: its `type`, where that much could be read.

    `job_id`, `attempt`: the job that it names, so that this job needn't wait for what won't come.
    """

    def __init__(self, nack_code: NackCode, in_reply_to: str | None, message: str) -> None:
        super().__init__(message)
        self.nack_code = nack_code
        self.in_reply_to = in_reply_to
        self.message = message
        self.job_id: str | None = None
        self.attempt: int | None = None

    def nack(self) -> Nack:
        """The frame to answer with."""
        return Nack(
            in_reply_to=self.in_reply_to,
            job_id=self.job_id,
            attempt=self.attempt,
            code=self.nack_code,
            message=self.message,
        )


def encode(message: Wire) -> str:
    """The text frame of a message. Raises `FrameError(too_large)` if its peer would refuse the size.

    Absent and `null` mean the same in every message, so `null` members are left out, except inside
    `job_offer.request` and `logprobs`, which are carried as they are.
    """
    text = message.model_dump_json(exclude_none=True)
    # Looked up by exact type: `isinstance` against models goes through their metaclass, three times as slow.
    cap = FRAME_FROM_GATEWAY_BYTES if type(message) in _GATEWAY_MESSAGES else FRAME_FROM_PROVIDER_BYTES
    if len(text) * 4 > cap:
        _check_size(text, cap, getattr(message, "type", None))
    return text


def decode_from_gateway(frame: str | bytes) -> FromGateway | UnknownMessage:
    """A frame that the provider received. A binary frame is malformed."""
    return _decode(frame, _FROM_GATEWAY, FRAME_FROM_GATEWAY_BYTES, _PROVIDER_TYPES)


def decode_from_provider(frame: str | bytes) -> FromProvider | UnknownMessage:
    """A frame that the gateway received. A binary frame is malformed."""
    return _decode(frame, _FROM_PROVIDER, FRAME_FROM_PROVIDER_BYTES, _GATEWAY_TYPES)


def _decode(
    frame: str | bytes, known: TypeAdapter[Message], cap: int, opposite_types: frozenset[str]
) -> Message | UnknownMessage:
    try:
        text = _text(frame, cap)
        try:
            return known.validate_json(text, strict=True)
        except ValidationError as error:
            return _unknown_or_raise(error, opposite_types)
    except FrameError as fault:
        fault.job_id, fault.attempt = _job_named_in(frame, fault.in_reply_to)
        raise


def _job_named_in(frame: str | bytes, message_type: str | None) -> tuple[str | None, int | None]:
    """The job that a frame without a meaning is about, also where it isn't JSON: in a string of a frame the
    quotes would be escaped."""
    if message_type is not None and not message_type.startswith("job_"):
        return None, None
    text = frame if isinstance(frame, str) else frame.decode("utf-8", "replace")
    job, attempt = _JOB_ID.search(text), _ATTEMPT.search(text)
    return job and job[1], attempt and int(attempt[1])


def _text(frame: str | bytes, cap: int) -> str:
    """The frame as text within its cap and free of `NaN` and `Infinity`, which are no JSON (RFC 8259, 6)."""
    if not isinstance(frame, str):
        raise FrameError(NackCode.MALFORMED, None, "a frame is a text frame, this one is binary")
    if len(frame) * 4 > cap:
        _check_size(frame, cap, None)
    # pydantic's parser takes these two words for numbers; a string may hold them, so only then look closer.
    if "NaN" in frame or "Infinity" in frame:
        try:
            json.loads(frame, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise FrameError(NackCode.NOT_JSON, None, "the frame is not JSON") from None
    return frame


def _check_size(text: str, cap: int, message_type: str | None) -> None:
    """Compare UTF-8 bytes with the cap; callers skip this where the number of characters decides it."""
    if len(text) > cap or len(text.encode("utf-8", "surrogatepass")) > cap:
        raise FrameError(NackCode.TOO_LARGE, message_type, f"a frame holds at most {cap} bytes")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _unknown_or_raise(error: ValidationError, opposite_types: frozenset[str]) -> UnknownMessage:
    """Tell a newer peer's type from a fault. The parser's own words may quote the frame: not repeated."""
    first = error.errors(include_url=False, include_input=False)[0]
    kind = first["type"]
    if kind == "union_tag_invalid":
        tag = str(first["ctx"]["tag"])
        if tag not in opposite_types and _TYPE_NAME.match(tag):
            return UnknownMessage(tag)
    raise _fault(first, opposite_types) from None


def _fault(first: ErrorDetails, opposite_types: frozenset[str]) -> FrameError:
    kind = first["type"]
    if kind in ("json_invalid", "string_unicode"):
        return FrameError(NackCode.NOT_JSON, None, "the frame is not JSON")
    if kind == "union_tag_invalid":
        tag = str(first["ctx"]["tag"])
        if tag in opposite_types:
            return FrameError(NackCode.UNEXPECTED, tag, "this side sends that type, it doesn't receive it")
        return FrameError(NackCode.MALFORMED, None, "`type` is not the name of a message")
    if kind == "union_tag_not_found":
        return FrameError(NackCode.MALFORMED, None, "`type` is missing")
    if not first["loc"]:
        return FrameError(NackCode.MALFORMED, None, "a frame is one JSON object")
    return FrameError(NackCode.MALFORMED, str(first["loc"][0]), _where(first))


def _where(details: ErrorDetails) -> str:
    """Path and kind of the first fault, as `delta.tool_calls.0.index: int_type`."""
    path = ".".join(str(part) for part in details["loc"][1:]) or "message"
    return f"{path}: {details['type']}"
