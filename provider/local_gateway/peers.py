"""One websocket to a provider: frames in, frames out. What they mean is the `Switchboard`'s business.

The reader only decodes and applies, so no handler can block it; the sender has a task of its own. Control
frames go before offers. A send that makes no progress for `Timers.send` seconds, silence for
`Timers.link_dead`, or more control frames waiting than a peer that reads can cause, ends it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import structlog
from aiohttp import WSMsgType, web

from gateway_protocol.codec import FrameError
from gateway_protocol.limits import FRAME_FROM_PROVIDER_BYTES, WAITING_CONTROL_FRAMES
from gateway_protocol.messages import (
    PROTOCOL_VERSION,
    SUBPROTOCOL,
    Challenge,
    FromGateway,
    JobCancel,
    JobOffer,
    Nack,
    NackCode,
    Refused,
    RefusedCode,
    Register,
    Wire,
)
from gateway_protocol.session import GatewaySession, LinkPhase, events
from gateway_protocol.signing import b64url
from provider.local_gateway.handshake import Dialled, close_code, origins_of, refused
from provider.local_gateway.providers import ProviderRecord
from provider.local_gateway.settings import Timers
from provider.local_gateway.switchboard import Switchboard

log = structlog.get_logger("gateway")

_CLOSE_WAIT: Final = 2.0
_SMALL: Final = 16 * 1024


class _Close(NamedTuple):
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class LinkRules:
    """What every link is held to.

    `tokens`: those in force; where there are none, none is asked for. `nonces`: of the latest challenges.
    """

    gateway_id: str
    tokens: Callable[[], Collection[str]]
    timers: Timers
    most: int
    wall_ms: Callable[[], int]
    nonces: deque[str]


class Peer:
    """One connection, from the upgrade to its end."""

    def __init__(self, switchboard: Switchboard, rules: LinkRules) -> None:
        self._loop = asyncio.get_running_loop()
        self._switchboard = switchboard
        self._rules = rules
        self._session = GatewaySession()
        self._record: ProviderRecord | None = None
        self._control: deque[str | _Close] = deque()
        self._offers: deque[str] = deque()
        self._pending = asyncio.Event()
        self._heard_at = self._loop.time()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._nonce = ""
        self._closing = False

    # --- Link ----------------------------------------------------------------------------------

    def send(self, message: Wire) -> bool:
        if self._session.phase is LinkPhase.CLOSED:
            return True  # the link ends, its jobs hear of that
        try:
            frame = self._session.send(cast(FromGateway, message))
        except FrameError as error:
            log.warning("frame_not_sent", frame=type(message).__name__, reason=error.message)
            return False
        # A cancel must not overtake the offer that it cancels.
        last = isinstance(message, JobOffer) or (isinstance(message, JobCancel) and self._offers)
        (self._offers if last else self._control).append(frame)
        self._pending.set()
        if len(self._control) > WAITING_CONTROL_FRAMES:
            log.warning("link_flooded", registered=self._record is not None)
            self._control.clear()
            self._abort()
        return True

    def close(self, code: int, reason: str) -> None:
        self._session.close()
        self._closing = True
        self._control.append(_Close(code, reason))
        self._pending.set()

    # --- life ----------------------------------------------------------------------------------

    async def serve(self, request: web.Request, live: set[Peer]) -> web.WebSocketResponse:
        """Upgrade, register, pump frames until the link ends."""
        ws = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            max_msg_size=FRAME_FROM_PROVIDER_BYTES,
            compress=False,
            timeout=_CLOSE_WAIT,
        )
        await ws.prepare(request)
        transport = request.transport
        if transport is None:
            return ws
        self._transport = transport
        live.add(self)
        sender = asyncio.create_task(self._send_loop(ws), name="gateway-link-send")
        try:
            if self._welcome(request, ws, len(live)):
                await self._read_loop(request, ws)
            await self._flush(sender)
        finally:
            live.discard(self)
            self._end()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return ws

    def _welcome(self, request: web.Request, ws: web.WebSocketResponse, count: int) -> bool:
        """Send the challenge, or close with the reason why there is none."""
        if ws.ws_protocol != SUBPROTOCOL:
            self._refuse(refused(RefusedCode.UNSUPPORTED_VERSION, f"the subprotocol here is {SUBPROTOCOL}"))
            return False
        if count > self._rules.most:
            wait_ms = 60_000
            self._refuse(
                refused(RefusedCode.TOO_MANY, "this gateway has all the providers it takes", wait_ms)
            )
            return False
        tokens = self._rules.tokens()
        if tokens and not _token_fits(request, tokens):
            self._refuse(refused(RefusedCode.TOKEN_REFUSED, "this gateway asks for a provider token"))
            return False
        self._nonce = b64url(secrets.token_bytes(32))
        self._rules.nonces.append(self._nonce)
        self.send(
            Challenge(
                protocol_versions=(PROTOCOL_VERSION,),
                gateway_id=self._rules.gateway_id,
                nonce=self._nonce,
                time_ms=self._rules.wall_ms(),
            )
        )
        self._watch_timer = self._loop.call_later(self._rules.timers.register, self._watch)
        return True

    def _refuse(self, refusal: Refused) -> None:
        self.send(refusal)
        self.close(close_code(refusal.code), refusal.code)

    async def _read_loop(self, request: web.Request, ws: web.WebSocketResponse) -> None:
        host = request.headers.get("Host", "")
        dialled = Dialled(
            self._rules.gateway_id,
            self._nonce,
            origins_of(host, secure=request.secure),
            [nonce for nonce in self._rules.nonces if nonce != self._nonce],
        )
        receive, session = ws.receive, self._session
        while True:
            message = await receive()
            kind = message.type
            if kind is not WSMsgType.TEXT and kind is not WSMsgType.BINARY:
                return
            self._heard_at = self._loop.time()
            for event in session.receive_frame(message.data):
                if self._record is not None:
                    self._switchboard.event(self._record, self, event)
                    if type(event) is events.ChunkReceived and self._ack_timer is None:
                        self._ack_timer = self._loop.call_later(self._rules.timers.ack, self._acknowledge)
                else:
                    self._before_open(event, dialled)

    def _before_open(self, event: events.GatewayEvent, dialled: Dialled) -> None:
        if isinstance(event, events.RegistrationReceived):
            self._registration(event.register, dialled)
        elif isinstance(event, events.Send):
            self.send(event.message)
            if isinstance(event.message, Nack) and event.message.code in (
                NackCode.MALFORMED,
                NackCode.NOT_JSON,
            ):
                # Nothing more can come of a link whose registration can't be read.
                self._refuse(refused(RefusedCode.MALFORMED, event.message.message))

    def _registration(self, register: Register, dialled: Dialled) -> None:
        result = self._switchboard.register(self, self._session, register, dialled)
        if isinstance(result, Refused):
            log.warning("provider_refused", provider_id=register.provider_id, code=str(result.code))
            self._refuse(result)
            return
        self._record = result
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._look_again()

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._control:  # a slow reader gets one acknowledgement for all that came meanwhile
            self._ack_timer = self._loop.call_later(self._rules.timers.ack, self._acknowledge)
            return
        attempts = () if self._record is None else self._record.attempts.values()
        # Of a buyer who reads slowly: its provider then stops at what an outbox holds.
        withheld = {each.job_id for each in attempts if each.job is not None and each.job.delivery.full}
        for ack in self._session.acknowledgements(withheld):
            self.send(ack)
        if withheld and self._session.jobs.owes_acknowledgements:
            self._ack_timer = self._loop.call_later(self._rules.timers.ack, self._acknowledge)

    def _look_again(self) -> None:
        timers = self._rules.timers
        self._watch_timer = self._loop.call_later(min(timers.look, timers.heartbeat), self._watch)

    def _watch(self) -> None:
        """A link that is silent is dead, whatever the socket says."""
        silent = self._loop.time() - self._heard_at
        if self._record is None or silent >= self._rules.timers.link_dead:
            log.warning("link_dead", silent_s=round(silent, 1), registered=self._record is not None)
            self._abort()
            return
        self._switchboard.watch(self._record, self)
        self._look_again()

    # --- sending -------------------------------------------------------------------------------

    async def _send_loop(self, ws: web.WebSocketResponse) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while self._control or self._offers:
                item = self._control.popleft() if self._control else self._offers.popleft()
                if isinstance(item, _Close):
                    await ws.close(code=item.code, message=item.reason.encode())
                    return
                try:
                    await self._send_bounded(ws, item)
                except (ConnectionError, TimeoutError):
                    self._abort()
                    return

    async def _send_bounded(self, ws: web.WebSocketResponse, frame: str) -> None:
        """Send, and give up when nothing of it moves for `Timers.send` seconds;

        a large frame may take longer.
        """
        transport = self._transport
        if transport is None:
            return
        if len(frame) < _SMALL and not transport.get_write_buffer_size():
            await ws.send_str(frame)  # goes into an empty buffer, so there is nothing to wait for
            return
        sending = asyncio.ensure_future(ws.send_str(frame))
        try:
            left = transport.get_write_buffer_size() + 4 * len(frame)
            while not (await asyncio.wait({sending}, timeout=self._rules.timers.send))[0]:
                waiting = transport.get_write_buffer_size()
                if waiting >= left:
                    raise TimeoutError
                left = waiting
            await sending
        finally:
            sending.cancel()

    async def _flush(self, sender: asyncio.Task[None]) -> None:
        """Let the last frames and the closing handshake out, if one was asked for."""
        if self._closing:
            await asyncio.wait({sender}, timeout=_CLOSE_WAIT + self._rules.timers.send)

    def _abort(self) -> None:
        self._session.close()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        self._session.close()
        for timer in (self._ack_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        if self._record is not None:
            self._switchboard.lost(self._record, self)


def _token_fits(request: web.Request, tokens: Collection[str]) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    raw = given.strip().encode("utf-8", "surrogateescape")
    return any(hmac.compare_digest(token.encode(), raw) for token in tokens)
