"""The one shape of both state tables, the link's and a job's: phase → message type → phase after it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from gateway_protocol.errors import ProtocolError

Phase = TypeVar("Phase", bound=StrEnum)


class IllegalMove(ProtocolError):
    """This side was about to break the protocol: a bug here, never a peer's doing."""


class Table(Generic[Phase]):
    """What may be said in each phase, and where it leads. A phase that isn't there allows nothing."""

    def __init__(self, moves: Mapping[Phase, Mapping[str, Phase]]) -> None:
        self._moves = {(phase, kind): after for phase, row in moves.items() for kind, after in row.items()}

    def after(self, phase: Phase, message_type: str) -> Phase:
        """The phase after a message; raises `IllegalMove` where the table has no entry."""
        try:
            return self._moves[phase, message_type]
        except KeyError:
            raise IllegalMove(f"{message_type} in phase {phase}") from None
