"""Open and close the websocket: who may be dialled, with which token, and what each failure asks for."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidProxy, InvalidStatus, ProxyError, WebSocketException
from websockets.typing import Subprotocol

from gateway_protocol.limits import (
    FRAME_FROM_GATEWAY_BYTES,
    HEARTBEAT_INTERVAL_MS,
    KIB,
    LINK_DEAD_AFTER_MS,
    LINK_LOOK_MS,
    SEND_TIMEOUT_MS,
)
from gateway_protocol.messages import SUBPROTOCOL, CloseCode
from provider.link.backoff import Verdict, verdict_for_http
from provider.link.supervisor import LinkEnd
from provider.unreachable import unreachable_words

SEND_BUFFER_BYTES = 256 * KIB


@dataclass(frozen=True, slots=True)
class LinkTimers:
    """Seconds. `dead`: so much silence ends a link, which is looked at each `look`.

    `between_changes`: a heartbeat about a change comes at least so long after another one.
    """

    open: float = 15.0
    register: float = 15.0
    send: float = SEND_TIMEOUT_MS / 1000
    dead: float = LINK_DEAD_AFTER_MS / 1000
    look: float = LINK_LOOK_MS / 1000
    heartbeat: float = HEARTBEAT_INTERVAL_MS / 1000
    between_changes: float = 0.1
    close: float = 3.0


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Where to dial and how. `token_file` is read at each dial, `token` is one in memory instead.

    `refused_retry`: seconds after which a service asks a gateway that refused it again.
    `tls`: `None` verifies certificates as usual.
    """

    url: str
    token_file: Path | None = None
    token: str | None = None
    allow_insecure: bool = False
    user_agent: str = "malibu-provider"
    tls: ssl.SSLContext | None = None
    refused_retry: float = 600.0
    timers: LinkTimers = LinkTimers()


class DialFailed(Exception):
    """No websocket came about."""

    def __init__(self, verdict: Verdict, reason: str, detail: str) -> None:
        self.end = LinkEnd(verdict, reason, detail)
        super().__init__(str(self.end))


class _Dial(connect):
    """Refuses redirects: a token must never follow one to another host."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def dial(settings: LinkSettings) -> ClientConnection:
    """A websocket that speaks our subprotocol. Raises `DialFailed`."""
    parts = urlsplit(settings.url)
    loopback = is_loopback(parts.hostname or "")
    if parts.scheme == "ws" and not loopback and not settings.allow_insecure:
        raise DialFailed(Verdict.STOP, "insecure_url", "ws:// to another host needs gateway.allow_insecure")
    more: dict[str, Any] = {} if settings.tls is None else {"ssl": settings.tls}
    attempt = _Dial(
        settings.url,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        additional_headers=_authorization(settings),
        user_agent_header=settings.user_agent,
        compression=None,
        proxy=None if loopback else True,
        open_timeout=settings.timers.open,
        close_timeout=settings.timers.close,
        # The protocol has heartbeats of its own, and they tell more than a ping.
        ping_interval=None,
        max_size=FRAME_FROM_GATEWAY_BYTES,
        **more,
    )
    try:
        socket = await attempt
    # A proxy of a kind that needs a package more is an ImportError.
    except (OSError, EOFError, UnicodeError, ImportError, WebSocketException) as error:
        raise _failed(error) from None
    _bound_send_buffer(socket)
    if socket.subprotocol != SUBPROTOCOL:
        await hang_up(socket, CloseCode.NORMAL, settings.timers.close)
        raise DialFailed(Verdict.WAIT, "no_subprotocol", "the other side is no gateway of this protocol")
    return socket


def _failed(error: Exception) -> DialFailed:
    match error:
        case InvalidStatus():
            status = error.response.status_code
            return DialFailed(verdict_for_http(status), f"http_{status}", _http_words(status))
        case ssl.SSLError():
            return DialFailed(Verdict.WAIT, "tls", unreachable_words(error))
        case ImportError() | InvalidProxy() | ProxyError():
            # Its own words may hold the proxy's password.
            words = "the proxy of this machine's settings can't be used; change it, or set NO_PROXY"
            return DialFailed(Verdict.WAIT, "proxy", words)
        case WebSocketException():
            return DialFailed(Verdict.WAIT, "no_websocket", "it doesn't answer as a gateway does")
        case TimeoutError():
            return DialFailed(Verdict.RETRY, "timeout", "the gateway doesn't answer")
    return DialFailed(Verdict.RETRY, "unreachable", unreachable_words(error))


def _bound_send_buffer(socket: ClientConnection) -> None:
    # The kernel would grow this to megabytes on a slow line, and a heartbeat has to wait for all of it.
    raw = socket.transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES)


async def hang_up(socket: ClientConnection, code: int | None, seconds: float) -> None:
    """Close with `code`, in order if that works within `seconds`; `None`: at once."""
    if code is not None:
        try:
            async with asyncio.timeout(seconds):
                await socket.close(code)
        except TimeoutError:
            pass
    socket.transport.abort()
    await socket.wait_closed()


def is_loopback(host: str) -> bool:
    """Whether a URL's host can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(settings: LinkSettings) -> dict[str, str]:
    token_file = settings.token_file
    if settings.token is not None:
        return {"Authorization": f"Bearer {settings.token}"}
    if token_file is None:
        return {}
    try:
        token = token_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise DialFailed(Verdict.STOP, "token_file", f"can't read {token_file}") from None
    if not token or not token.isprintable():
        raise DialFailed(Verdict.STOP, "token_file", f"{token_file} holds no token")
    return {"Authorization": f"Bearer {token}"}


def _http_words(status: int) -> str:
    if status in (401, 403):
        return "the gateway refuses the token"
    return "redirects are refused" if 300 <= status < 400 else "the gateway refuses the upgrade"
