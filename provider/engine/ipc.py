"""What daemon and engine child say to each other over their socketpair: one pickle a frame, length first.

Both ends are this package in one interpreter version, and the socket is inherited, never opened to others:
pickle's trust in its peer is warranted. A frame from the child holds the events of some steps for all jobs.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway_protocol.messages import ModelState
from provider.engine.base import EngineEvent, GenerationRequest, TokenLogprob
from provider.engine.spec import EngineSettings

_LENGTH = struct.Struct("!I")
SOCKET_BUFFER_BYTES = 4 << 20


# --- daemon → child --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame. `preload`: models to have in memory before the child says it serves."""

    settings: EngineSettings
    preload: tuple[str, ...]


class Submit(NamedTuple):
    """`serial` names the job on this socket and never comes twice in a child's life."""

    serial: int
    request: GenerationRequest


class Cancel(NamedTuple):
    serial: int


class Pause(NamedTuple):
    serial: int
    paused: bool


# --- child → daemon --------------------------------------------------------------------------


class Hello(NamedTuple):
    device: str
    slots: int


class ModelReport(NamedTuple):
    """`detail`: why it failed, in words for the owner; `None` otherwise."""

    model: str
    state: ModelState
    detail: str | None


class Serving(NamedTuple):
    """Everything of `Setup.preload` was tried; `slots`: those that memory holds now that it is loaded."""

    slots: int


class TokenRow(NamedTuple):
    """Tokens of one job in order, column by column; `logprobs` is `None` or one entry for each token.

    `together`: see `Tokens`.
    """

    serial: int
    texts: tuple[str, ...]
    ids: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, tuple[TokenLogprob, ...]], ...] | None
    together: bool = False


class JobEvent(NamedTuple):
    """Any event but `Tokens`."""

    serial: int
    event: EngineEvent


@dataclass(slots=True)
class Beat:
    """Turns of the step loop: its totals since the child's start and, in order, what happened to jobs."""

    steps: int = 0
    generated_tokens: int = 0
    cancels: int = 0
    prefilled_tokens: int = 0
    active_bytes: int = 0
    cache_bytes: int = 0
    limit_bytes: int = 0
    rows: list[TokenRow | JobEvent] = field(default_factory=list)


FromDaemon = Setup | Submit | Cancel | Pause
FromChild = Hello | ModelReport | Serving | Beat


def encode(message: FromDaemon | FromChild) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a byte stream into messages. Feed what arrives; iterate what is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[FromDaemon | FromChild]:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                message = pickle.loads(view[start + _LENGTH.size : end])
            start = end
            yield message
        del buffer[:start]


class ChildChannel:
    """The child's end: any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = FrameReader()
        self._sending = threading.Lock()

    def send(self, message: FromChild) -> None:
        """Blocks while the daemon doesn't read. A daemon that is gone is noticed by `receive`."""
        frame = encode(message)
        with self._sending:
            try:
                self._socket.sendall(frame)
            except OSError:
                return

    def receive(self) -> list[FromDaemon | FromChild]:
        """The next messages; `[]` once the daemon is gone."""
        while True:
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                return []
            if not data:
                return []
            messages = list(self._reader.feed(data))
            if messages:
                return messages
