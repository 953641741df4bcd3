"""A gateway on a real socket, for tests of the provider's end: it does what the test tells it to do.

async with FakeGateway() as gateway:
    link = await gateway.link()          # a provider has dialled and is registered
    await link.send(JobOffer(…))
    ended = await link.until(events.JobEnded)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from gateway_protocol.limits import FRAME_FROM_PROVIDER_BYTES
from gateway_protocol.messages import SUBPROTOCOL, Challenge, HeartbeatAck, Register, Registered, Wire
from gateway_protocol.session import GatewayJobs, GatewaySession, events

Event = TypeVar("Event")


class FakeLink:
    """One provider's websocket. `received`: every frame's text, as it came."""

    def __init__(self, websocket: ServerConnection, jobs: GatewayJobs) -> None:
        self.socket = websocket
        self.session = GatewaySession()
        self.received: list[str] = []
        self.heartbeats: list[events.HeartbeatReceived] = []
        self.register: Register | None = None
        self.acknowledging = True
        self._jobs = jobs
        self._events: deque[Any] = deque()

    async def send(self, message: Wire) -> None:
        await self.socket.send(self.session.send(message))  # type: ignore[arg-type]

    async def challenge(self, **changes: Any) -> None:
        fields = {
            "protocol_versions": (1,),
            "gateway_id": "gw_test",
            "nonce": "A" * 43,
            "time_ms": int(time.time() * 1000),
        }
        await self.send(Challenge(**(fields | changes)))

    async def admit(self, **changes: Any) -> None:
        """Take the registration and answer `registered`, with what is to be resumed."""
        received = await self.until(events.RegistrationReceived)
        self.register = received.register
        admission = self.session.admit(received.register, self._jobs)
        fields = {"session_id": "s", "heartbeat_interval_ms": 10_000, "resume_window_ms": 60_000}
        await self.send(Registered(resume=admission.resume, **(fields | changes)))
        for event in admission.events:
            await self._take(event)

    async def next(self) -> Any:
        """The next event; the answers that the protocol asks for go out by themselves."""
        while not self._events:
            frame = await self.socket.recv()
            assert isinstance(frame, str)
            self.received.append(frame)
            for event in self.session.receive_frame(frame):
                await self._take(event)
            if self.acknowledging:
                for ack in self.session.acknowledgements():
                    await self.send(ack)
        return self._events.popleft()

    async def _take(self, event: Any) -> None:
        if isinstance(event, events.Send):
            if self.acknowledging:
                await self.send(event.message)
        elif isinstance(event, events.HeartbeatReceived):
            self.heartbeats.append(event)
            await self.send(HeartbeatAck(routable=True, time_ms=0))
            self._events.append(event)
        else:
            self._events.append(event)

    async def until(self, kind: type[Event], *, seconds: float = 60.0) -> Event:
        """The next event of a kind; what comes before it is dropped."""
        async with asyncio.timeout(seconds):
            while True:
                event = await self.next()
                if isinstance(event, kind):
                    return event

    async def collect(self, kind: type[Event], last: type[Any], *, seconds: float = 60.0) -> list[Any]:
        """All events of `kind` up to and with the next of `last`."""
        found: list[Any] = []
        async with asyncio.timeout(seconds):
            while True:
                event = await self.next()
                if isinstance(event, kind | last):
                    found.append(event)
                if isinstance(event, last):
                    return found

    async def closed(self, *, seconds: float = 60.0) -> int:
        """Wait until the provider has closed; the close code."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.next()
        return self.socket.close_code or 1006

    def cut(self) -> None:
        """Drop the connection without a word."""
        self.session.close()
        self.socket.transport.abort()


class FakeGateway:
    """`answer`: what an upgrade request is answered with instead of a websocket, `None` to go on.

    `at_once`: run instead of handing the link to the test (a gateway that accepts and closes, say).
    """

    def __init__(
        self,
        *,
        answer: Callable[[ServerConnection, Request], Response | None] | None = None,
        at_once: Callable[[FakeLink], Awaitable[None]] | None = None,
        subprotocols: list[str] | None = None,
    ) -> None:
        self.jobs = GatewayJobs()
        self.requests: list[Request] = []
        self._answer = answer
        self._at_once = at_once
        self._subprotocols = [SUBPROTOCOL] if subprotocols is None else subprotocols
        self._links: asyncio.Queue[FakeLink] = asyncio.Queue()
        self._server: Server | None = None
        self._open: set[ServerConnection] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/provider"

    async def __aenter__(self) -> FakeGateway:
        # A small receive buffer, so that a test which doesn't read is a slow reader at once.
        listening = socket.create_server(("127.0.0.1", self.port), backlog=64)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._server = await serve(
            self._handle,
            sock=listening,
            subprotocols=self._subprotocols or None,  # type: ignore[arg-type]
            process_request=self._request,
            max_size=FRAME_FROM_PROVIDER_BYTES,
            compression=None,
            ping_interval=None,
            close_timeout=1,
        )
        self.port = listening.getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        # A link that nobody read is paused, and would never notice that its other end has gone.
        for websocket in self._open:
            websocket.transport.abort()
        await self._server.wait_closed()

    async def dialled(self, *, seconds: float = 60.0) -> FakeLink:
        """The next websocket, nothing said yet."""
        async with asyncio.timeout(seconds):
            return await self._links.get()

    async def link(self, *, seconds: float = 60.0, **registered: Any) -> FakeLink:
        """The next websocket, registered."""
        link = await self.dialled(seconds=seconds)
        await link.challenge()
        await link.admit(**registered)
        return link

    def _request(self, websocket: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        return self._answer(websocket, request) if self._answer is not None else None

    async def _handle(self, websocket: ServerConnection) -> None:
        link = FakeLink(websocket, self.jobs)
        if self._at_once is not None:
            with contextlib.suppress(ConnectionClosed):
                await self._at_once(link)
            return
        self._links.put_nowait(link)
        self._open.add(websocket)
        try:
            await websocket.wait_closed()
        finally:
            self._open.discard(websocket)


def http_answer(status: int, **headers: str) -> Callable[[ServerConnection, Request], Response]:
    """An upgrade refused with a status."""
    return lambda websocket, request: Response(status, "", Headers(headers), b"")
