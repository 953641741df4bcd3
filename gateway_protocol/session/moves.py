"""The one shape of both state tables, the link's and a job's: (phase, message type) → phase after it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from gateway_protocol.errors import ProtocolError

Phase = TypeVar("Phase", bound=StrEnum)


class IllegalMove(ProtocolError):
    """This side was about to break the protocol: a bug here, never a peer's doing."""


def moved(table: Mapping[tuple[Phase, str], Phase], phase: Phase, message_type: str) -> Phase:
    """The phase after a message; raises `IllegalMove` where the table has no entry."""
    try:
        return table[phase, message_type]
    except KeyError:
        raise IllegalMove(f"{message_type} in phase {phase}") from None
