"""TCP connections of buyers: how many, how idle, how slow, and an answer in the envelope even to broken HTTP.

    accept ─▶ idle ──request──▶ busy ──answered──▶ idle ─▶ …     over the cap the one idle longest is closed

aiohttp has no bound on connections, none on the time that a request's head may take and none on the time in
which an answer must be read; all three are here.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_server import Server

from gateway_protocol.errors import ApiError, ErrorCode
from provider.local_gateway.envelope import Handler, error_headers, error_response, new_request_id
from provider.local_gateway.sse import to_json

log = structlog.get_logger("gateway")

# The request's line and each header, name and value apart: aiohttp's own bound, told to buyers.
HEAD_LINE_BYTES: Final = 8190
# Files that a process needs beside its connections.
_OTHER_FILES: Final = 64


def raise_file_limit(wanted: int) -> int:
    """Ask for `wanted` connections' worth of file descriptors; how many connections there may be then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + _OTHER_FILES:
        enough = wanted + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + _OTHER_FILES)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
            soft = enough
        except (OSError, ValueError) as error:  # macOS has a lower limit of its own
            log.info("file_limit_kept", limit=soft, reason=str(error))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _OTHER_FILES))


class Connections:
    """All connections of one gateway. `head_seconds`: the first request's head must arrive in this time.

    `answer_seconds`: an answer that is whole must be read in this time.
    """

    def __init__(
        self,
        server: Server,
        most: int,
        options: dict[str, Any],
        *,
        head_seconds: float,
        answer_seconds: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._most = most
        self._options = options
        self._idle: OrderedDict[BuyerConnection, None] = OrderedDict()
        self.count = 0
        self.head_seconds = head_seconds
        self.answer_seconds = answer_seconds

    def __call__(self) -> BuyerConnection:
        return BuyerConnection(self, self._server, loop=self._loop, **self._options)

    def opened(self, connection: BuyerConnection) -> bool:
        """Count a new connection; False when it can't be served."""
        self.count += 1
        if self.count > self._most:
            if not self._idle:
                return False
            oldest, _ = self._idle.popitem(last=False)
            oldest.turn_away("This connection was idle and its place was needed.")
        self._idle[connection] = None
        return True

    def closed(self, connection: BuyerConnection) -> None:
        self.count -= 1
        self._idle.pop(connection, None)

    def busy(self, connection: BuyerConnection) -> None:
        self._idle.pop(connection, None)

    def idle(self, connection: BuyerConnection) -> None:
        if connection.transport is not None:
            self._idle[connection] = None


class BuyerConnection(web.RequestHandler):
    """aiohttp's connection, counted, with a bound on the time before its first request."""

    def __init__(self, connections: Connections, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self.counted = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_progress = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        # An answer counts as sent once the kernel has all of it: then nothing here waits for its reader.
        # (One byte: asyncio's TLS takes zero for "always full".)
        transport.set_write_buffer_limits(high=1, low=0)
        self.counted = True
        if not self._connections.opened(self):
            self.turn_away("This gateway has all the connections it takes.")
            return
        self._head_timer = self._loop.call_later(self._connections.head_seconds, self._too_slow)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_timer()
        if self.counted:
            self.counted = False
            self._connections.closed(self)
        super().connection_lost(exc)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A request runs on this connection."""
        self._stop_timer()
        self._in_progress += 1
        self._connections.busy(self)
        try:
            yield
        finally:
            self._in_progress -= 1
            if not self._in_progress:
                self._connections.idle(self)

    def turn_away(self, message: str) -> None:
        """Close with a refusal, for whoever still listens."""
        self._answer_raw(503, ApiError(ErrorCode.PROVIDER_OVERLOADED, message))

    def _too_slow(self) -> None:
        self._head_timer = None
        seconds = self._connections.head_seconds
        error = ApiError(ErrorCode.INVALID_REQUEST, f"No request arrived within {seconds:g} seconds.")
        self._answer_raw(408, error)

    def _answer_raw(self, status: int, error: ApiError) -> None:
        """An answer where there is no request to answer."""
        self._stop_timer()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(raw_answer(status, error))
            self.close()
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # whoever reads nothing
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """What aiohttp would write by itself: one event of ours, and nothing for a body that broke off.

        The buyer of such a body has its 400 already; aiohttp finds the fault a second time, reading on.
        """
        fault = kw.get("exc_info")
        if not isinstance(fault, web.RequestPayloadError):
            log.error("connection_failed", exc_info=fault)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What isn't HTTP gets the envelope, too; aiohttp's own text would be plain or HTML."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is out already")
        if status >= 500:
            log.error("connection_failed", exc_info=exc)
            error = ApiError(ErrorCode.PROVIDER_ERROR, "The gateway failed to serve this request.")
        else:
            error = ApiError(ErrorCode.INVALID_REQUEST, _what_is_wrong(exc))
        response = error_response(request, error)
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send what isn't sent yet, in bounded time, and stay busy until it is.

        aiohttp refuses an `Expect` that it doesn't know before any middleware has seen the request.
        """
        if isinstance(resp, web.HTTPExpectationFailed):
            message = "This gateway can't do what the header 'Expect' asks for."
            resp = error_response(request, ApiError(ErrorCode.INVALID_REQUEST, message))
        try:
            with self.serving():
                async with asyncio.timeout(self._connections.answer_seconds):
                    sent = await super().finish_response(request, resp, start_time)
                    await request.writer.drain()
                    return sent
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()
            return resp, True


def _what_is_wrong(fault: BaseException | None) -> str:
    """In words of ours: aiohttp's own quote what was sent, which may be a key."""
    if isinstance(fault, LineTooLong):
        return f"The request's first line or one of its headers is longer than {HEAD_LINE_BYTES} bytes."
    if isinstance(fault, BadHttpMessage) and "Too many headers" in fault.message:
        return "The request has more headers than this gateway takes."
    return "This is not a well-formed HTTP request."


def raw_answer(status: int, error: ApiError) -> bytes:
    """A whole HTTP/1.1 response as bytes."""
    request_id = new_request_id()
    body = to_json(error.envelope(request_id)).encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
        "x-request-id": request_id,
        **error_headers(error),
    }
    reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return head.encode() + b"\r\n" + body


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tells a connection when it is busy."""
    connection = request.protocol
    if not isinstance(connection, BuyerConnection):
        return await handler(request)
    with connection.serving():
        return await handler(request)
