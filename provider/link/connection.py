"""One websocket to a gateway, from the dial to its end. With `dial` the only importer of `websockets`.

    reader ─ frame ─▶ session ─ events ─▶ jobs (synchronous: a handler never holds up the reader)
    writer ◀─ control frames first, then data frames, pulled from the outbox one at a time
    monitor: heartbeats, silence from the gateway, a send that makes no progress

The three run side by side; whichever ends first ends the link. docs/protocol.md, "Rules".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway_protocol.codec import FrameError
from gateway_protocol.limits import WAITING_CONTROL_FRAMES
from gateway_protocol.messages import CloseCode, Draining, FromProvider, Nack, Refused
from gateway_protocol.session import ProviderSession, events
from provider.jobs.dispatcher import JobDispatcher
from provider.link.backoff import Verdict, verdict_for_close, verdict_for_refusal
from provider.link.board import LinkBoard
from provider.link.dial import DialFailed, LinkSettings, dial, hang_up
from provider.link.presence import Presence, telling
from provider.link.supervisor import LinkEnd

log = structlog.get_logger()

# In a burst other tasks must get their turn: `send` itself doesn't yield while it can write.
_FRAMES_BETWEEN_TURNS = 32


class _LinkOver(Exception):
    """Ends the link from within one of its tasks."""

    def __init__(self, end: LinkEnd, close_code: int | None = None) -> None:
        super().__init__(str(end))
        self.end = end
        self.close_code = close_code


class Connection:
    """A link in the making, standing, or over. `run` once; `close` from outside ends it in order."""

    def __init__(
        self, settings: LinkSettings, *, jobs: JobDispatcher, presence: Presence, board: LinkBoard
    ) -> None:
        self._settings = settings
        self._timers = settings.timers
        self._jobs = jobs
        self._presence = presence
        self._board = board
        self._session = ProviderSession(jobs.ledger)
        self._control: deque[str] = deque()
        self._something_to_send = asyncio.Event()
        self._attention = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._sending_since: float | None = None
        self._registered_at: float | None = None
        self._heartbeat_s = self._timers.heartbeat
        self._told: tuple[object, ...] = ()
        self._nacks_seen: set[tuple[str | None, str]] = set()
        self._socket: ClientConnection | None = None
        self._closed_by_us: int | None = None

    async def run(self) -> LinkEnd:
        """Dial and live; return how it ended. Whatever happens, the jobs know that the link is gone."""
        try:
            socket = await dial(self._settings)
        except DialFailed as failed:
            return failed.end
        self._socket = socket
        if self._closed_by_us is not None:
            await hang_up(socket, self._closed_by_us, self._timers.close)
            return self._closed_end([])
        self._heard_at = self._loop.time()
        self._board.registering()
        try:
            end, close_code = await self._live(socket)
        finally:
            self._session.close()
            if self._registered_at is not None:
                self._jobs.unlinked()
        await hang_up(socket, close_code, self._timers.close)
        return end

    async def close(self, code: int = CloseCode.GOING_AWAY) -> None:
        """Close the link in order; `run` returns soon after."""
        self._closed_by_us = code
        if self._socket is not None:
            await hang_up(self._socket, code, self._timers.close)

    # --- the jobs' lane ------------------------------------------------------------------------

    def post(self, message: Draining) -> None:
        self._send(message)

    def wake(self) -> None:
        self._something_to_send.set()

    def changed(self) -> None:
        self._attention.set()

    def _send(self, message: FromProvider) -> None:
        self._control.append(self._session.send(message))
        self._something_to_send.set()

    # --- living --------------------------------------------------------------------------------

    async def _live(self, socket: ClientConnection) -> tuple[LinkEnd, int | None]:
        tasks = [
            asyncio.create_task(self._read(socket), name="link-reader"),
            asyncio.create_task(self._write(socket), name="link-writer"),
            asyncio.create_task(self._monitor(), name="link-monitor"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        failures = [error for task in done if (error := task.exception()) is not None]
        for error in failures:
            if isinstance(error, _LinkOver):
                return self._aged(error.end), error.close_code
        for error in failures:
            if not isinstance(error, ConnectionClosed):
                raise error
        return self._aged(self._closed_end(failures)), None

    def _closed_end(self, failures: Sequence[BaseException]) -> LinkEnd:
        if self._closed_by_us is not None:
            return LinkEnd(Verdict.RETRY, "closed", "closed by this provider")
        # Where no close frame came, the library may have sent one: a frame over the limit, invalid UTF-8.
        frames = [f for e in failures if isinstance(e, ConnectionClosed) for f in (e.rcvd, e.sent) if f]
        code, reason = (frames[0].code, frames[0].reason) if frames else (1006, "")
        return LinkEnd(verdict_for_close(code), f"close_{code}", reason[:200] if reason.isprintable() else "")

    def _aged(self, end: LinkEnd) -> LinkEnd:
        if self._registered_at is None:
            return end
        lived_ms = (self._loop.time() - self._registered_at) * 1000
        return LinkEnd(end.verdict, end.reason, end.detail, lived_ms, end.at_least_ms)

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            frame = await socket.recv()
            self._heard_at = self._loop.time()
            for event in self._session.receive_frame(frame):
                self._act(event)

    def _act(self, event: events.ProviderEvent) -> None:
        match event:
            case events.JobAcknowledged():
                self._jobs.acknowledged(event.job_id, event.attempt, event.seq)
            case events.JobOffered():
                self._jobs.offered(event.offer)
            case events.CancelRequested():
                self._jobs.cancelled(event.job_id, event.reason)
            case events.HeartbeatAcknowledged():
                self._board.heard(event.ack)
            case events.Send():
                self._answer(event)
            case events.JobResumed():
                self._jobs.resumed(event.job_id, event.attempt, event.from_seq)
            case events.JobAbandoned():
                self._jobs.abandoned(event.job_id, event.reason.value)
            case events.DrainRequested():
                self._jobs.drain_requested(event.deadline_ms)
            case events.ChallengeReceived():
                self._challenged(event)
            case events.LinkOpened():
                self._opened(event)
            case events.LinkRefused():
                raise _LinkOver(_refused_end(event.refused), CloseCode.NORMAL)
            case events.NackReceived():
                self._nacked(event)

    def _nacked(self, event: events.NackReceived) -> None:
        """Worth one line for each kind on each link: a gateway may nack every chunk of a job."""
        kind = (event.nack.in_reply_to, event.nack.code)
        if kind not in self._nacks_seen and len(self._nacks_seen) < 100:
            self._nacks_seen.add(kind)
            log.warning("gateway_nack", in_reply_to=event.nack.in_reply_to, code=event.nack.code.value)

    def _answer(self, event: events.Send) -> None:
        assert isinstance(event.message, Nack), "a provider acknowledges and cancels nothing"
        try:
            self._send(event.message)
        except FrameError:
            log.warning("answer_not_sent", type=event.message.type)
        if len(self._control) > WAITING_CONTROL_FRAMES:
            raise _over(Verdict.RETRY, "flooded", "the gateway asks for more answers than it reads")

    def _challenged(self, event: events.ChallengeReceived) -> None:
        if not event.supported:
            end = LinkEnd(Verdict.STOP, "unsupported_version", "the gateway speaks no version that we speak")
            raise _LinkOver(end, CloseCode.VERSION)
        self._send(self._presence.register(event.challenge, self._settings.url))

    def _opened(self, event: events.LinkOpened) -> None:
        registered = event.registered
        self._registered_at = self._loop.time()
        self._heartbeat_s = min(self._timers.heartbeat, registered.heartbeat_interval_ms / 1000)
        self._board.registered(registered)
        self._jobs.linked(self, registered.resume_window_ms)
        self._attention.set()
        self._something_to_send.set()
        log.info("registered", gateway=self._board.gateway, resumed=len(registered.resume))

    # --- sending -------------------------------------------------------------------------------

    async def _write(self, socket: ClientConnection) -> None:
        sent = 0
        while True:
            frame = self._next_frame()
            if frame is None:
                self._something_to_send.clear()
                await self._something_to_send.wait()
                continue
            self._sending_since = self._loop.time()
            await socket.send(frame)
            self._sending_since = None
            sent += 1
            if sent % _FRAMES_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)

    def _next_frame(self) -> str | None:
        if self._control:
            return self._control.popleft()
        return self._jobs.next_frame() if self._session.is_open else None

    async def _monitor(self) -> None:
        """Heartbeats when they are due or something changed; the end when the link doesn't live."""
        began = self._loop.time()
        beaten = began - self._heartbeat_s
        while True:
            now = self._loop.time()
            self._check_alive(now)
            if self._registered_at is not None:
                due = now - beaten >= self._heartbeat_s
                self._attention.clear()
                if self._beat(due=due):
                    beaten = now if due else beaten
                    await asyncio.sleep(self._timers.between_changes)
            elif now - began > self._timers.register:
                raise _over(Verdict.RETRY, "register_timeout", "the gateway didn't register us in time")
            await self._pause(min(self._timers.look, self._heartbeat_s))

    async def _pause(self, seconds: float) -> None:
        """Sleep until something changes, at most `seconds`; forgive a sleep of the whole machine."""
        before = self._loop.time()
        try:
            async with asyncio.timeout(seconds):
                await self._attention.wait()
        except TimeoutError:
            pass
        if self._loop.time() - before > seconds + self._timers.send:
            # The process was stopped or the machine asleep: what arrived meanwhile is still to be read.
            grace = self._loop.time() - self._timers.dead + self._timers.send
            self._heard_at = max(self._heard_at, grace)

    def _beat(self, *, due: bool) -> bool:
        heartbeat = self._presence.heartbeat()
        told = telling(heartbeat)
        if not due and told == self._told:
            return False
        self._told = told
        self._send(heartbeat)
        return True

    def _check_alive(self, now: float) -> None:
        if now - self._heard_at > self._timers.dead:
            raise _over(Verdict.RETRY, "silent", "nothing came from the gateway for too long")
        if self._sending_since is not None and now - self._sending_since > self._timers.send:
            raise _over(Verdict.RETRY, "send_timeout", "the gateway takes nothing any more")


def _over(verdict: Verdict, reason: str, detail: str) -> _LinkOver:
    return _LinkOver(LinkEnd(verdict, reason, detail))


def _refused_end(refused: Refused) -> LinkEnd:
    return LinkEnd(
        verdict_for_refusal(refused),
        f"refused_{refused.code.value}",
        refused.message[:200] if refused.message.isprintable() else "",
        at_least_ms=refused.retry_after_ms or 0,
    )
