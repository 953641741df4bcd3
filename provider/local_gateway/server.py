"""Puts the local gateway together and opens its port."""

from __future__ import annotations

import asyncio
import math
import secrets
import ssl
from collections import deque
from typing import Any

import structlog
from aiohttp import web

from gateway_protocol.errors import ApiError, ErrorCode
from gateway_protocol.messages import CloseCode
from provider.local_gateway.access import Doorkeeper, is_loopback
from provider.local_gateway.api_keys import KeysError, KeysFile
from provider.local_gateway.body import expectation
from provider.local_gateway.broker import Broker
from provider.local_gateway.buyers import Buyers
from provider.local_gateway.chat import Chat
from provider.local_gateway.connections import (
    HEAD_LINE_BYTES,
    Connections,
    count_requests,
    raise_file_limit,
)
from provider.local_gateway.envelope import envelope_middleware
from provider.local_gateway.ledger import Ledger, MemoryLedger
from provider.local_gateway.ledger_file import LedgerError
from provider.local_gateway.models import Models
from provider.local_gateway.page import Page, load_page
from provider.local_gateway.peers import LinkRules, Peer
from provider.local_gateway.providers import Directory
from provider.local_gateway.settings import Access, GatewaySettings
from provider.local_gateway.sqlite_ledger import SqliteLedger
from provider.local_gateway.status import Status
from provider.local_gateway.switchboard import Switchboard

log = structlog.get_logger("gateway")

LINK_PATH = "/v1/provider"
# So many of the last challenges are kept, to tell a replayed registration from one with a wrong key.
_NONCES = 64


class GatewayConfigError(Exception):
    """The gateway may not or can't be started like this; the message says what to change."""


class LocalGateway:
    """One gateway: `start` opens the port, `url` tells it, `aclose` ends every stream properly."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self._provider_tokens = settings.access.provider_tokens
        self.url = ""
        self._keys = self._load_keys()
        self._tls = self._load_tls()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None
        self._peers: set[Peer] = set()
        self.directory: Directory
        self.broker: Broker
        self.switchboard: Switchboard
        self.ledger: Ledger

    def _load_keys(self) -> KeysFile | None:
        path = self.settings.access.keys_file
        if path is None:
            if not is_loopback(self.settings.host):
                raise GatewayConfigError(
                    f"without API keys only a loopback address may be bound, not {self.settings.host}; "
                    "make a key with `malibu-provider gateway key add NAME`"
                )
            return None
        try:
            return KeysFile(path, -math.inf)
        except KeysError as error:
            raise GatewayConfigError(str(error)) from None

    def _load_tls(self) -> ssl.SSLContext | None:
        cert, key = self.settings.tls_cert, self.settings.tls_key
        if cert is None and key is None:
            return None
        if cert is None or key is None:
            raise GatewayConfigError("TLS needs both a certificate and its key")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(cert, key)
        except ssl.SSLError:
            raise GatewayConfigError(
                f"can't use {cert} and {key}: they are no certificate and its key in PEM form"
            ) from None
        except OSError as error:
            raise GatewayConfigError(f"can't read {cert} and {key}: {error.strerror}") from None
        return context

    def _wall_ms(self) -> int:
        return int(self.settings.wall_clock() * 1000)

    def _open_ledger(self) -> tuple[Ledger, bytes]:
        """The ledger, and the secret that keeps tenants the same over restarts."""
        fresh = self.settings.secret or secrets.token_bytes(32)
        if self.settings.state_file is None:
            return MemoryLedger(), fresh
        try:
            ledger = SqliteLedger(self.settings.state_file, fresh)
        except LedgerError as error:
            raise GatewayConfigError(str(error)) from None
        return ledger, self.settings.secret or ledger.secret

    async def start(self) -> None:
        """Open the port. Raises `OSError` when it is taken."""
        settings = self.settings
        self.ledger, secret = self._open_ledger()
        self.directory = Directory(contract=settings.contract, minimum_version=settings.minimum_version)
        self.broker = Broker(settings, self.directory, self.ledger, self._wall_ms)
        self.switchboard = Switchboard(settings, self.directory, self.broker, self.ledger, self._wall_ms)
        buyers = Buyers(self._keys, secret, settings.caps)
        app = web.Application(middlewares=[count_requests, envelope_middleware(self._doorkeeper())])
        self._add_routes(app, buyers)
        # aiohttp wants these when the application's server is made, and again for each connection.
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": settings.timers.idle_connection,
            "max_line_size": HEAD_LINE_BYTES,
            "max_field_size": HEAD_LINE_BYTES,
        }
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=settings.timers.shutdown,
            **options,
        )
        await self._runner.setup()
        try:
            self._server = await self._listen(self._runner, options)
        except BaseException:
            await self._runner.cleanup()
            await self.ledger.aclose()
            raise
        self.url = self._address()
        log.info("gateway_started", url=self.url, open=buyers.open, contract=settings.contract)

    async def _listen(self, runner: web.AppRunner, options: dict[str, Any]) -> asyncio.Server:
        settings = self.settings
        server = runner.server
        assert server is not None
        most = raise_file_limit(settings.caps.connections)
        self._connections = Connections(
            server,
            most,
            options,
            head_seconds=settings.timers.request_head,
            answer_seconds=settings.timers.delivery,
        )
        return await asyncio.get_running_loop().create_server(
            self._connections,
            settings.host,
            settings.port,
            ssl=self._tls,
            reuse_address=True,
            backlog=min(most, 1024),
        )

    def _doorkeeper(self) -> Doorkeeper:
        access = self.settings.access
        return Doorkeeper(self.settings.host, access.hosts, access.origins)

    def _add_routes(self, app: web.Application, buyers: Buyers) -> None:
        settings, broker, directory = self.settings, self.broker, self.directory
        chat = Chat(settings, directory, broker, buyers)
        models = Models(directory, broker, buyers, int(settings.wall_clock()))
        status = Status(settings, directory, broker, self.ledger)
        rules = LinkRules(
            gateway_id=f"gw_{secrets.token_hex(8)}",
            tokens=lambda: self._provider_tokens,
            timers=settings.timers,
            most=settings.caps.providers,
            wall_ms=self._wall_ms,
            nonces=deque(maxlen=_NONCES),
        )

        async def link(request: web.Request) -> web.StreamResponse:
            return await Peer(self.switchboard, rules).serve(request, self._peers)

        for prefix in ("/v1", ""):
            app.router.add_post(f"{prefix}/chat/completions", chat.handle, expect_handler=expectation)
            app.router.add_get(f"{prefix}/models", models.list)
            app.router.add_get(prefix + "/models/{model:.+}", models.one)
        page = Page(settings, directory, broker, buyers, self.ledger, *load_page())
        app.router.add_get("/", page.index)
        app.router.add_get("/openapi.json", page.describe)
        app.router.add_get("/v1/live", page.live)
        app.router.add_post("/v1/explain", page.explain, expect_handler=expectation)
        app.router.add_get("/health", status.health)
        app.router.add_get("/v1/status", status.status)
        app.router.add_get("/v1/providers/keys", status.keys)
        app.router.add_post("/v1/providers/{provider_id}/status", status.report, expect_handler=expectation)
        app.router.add_get(LINK_PATH, link)

    def _address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._tls is None else 'https'}://{shown}:{port}"

    @property
    def connection_count(self) -> int:
        """Open connections, buyers' and providers'."""
        return 0 if self._connections is None else self._connections.count

    def routes(self) -> list[web.AbstractResource]:
        """Everything that is served."""
        assert self._runner is not None
        return list(self._runner.app.router.resources())

    @property
    def link_url(self) -> str:
        """What a provider dials."""
        return self.url.replace("http", "ws", 1) + LINK_PATH

    def admit(self, access: Access) -> None:
        """Take over which providers may serve: keys at once, tokens at the next connection of each."""
        self._provider_tokens = access.provider_tokens
        self.switchboard.allow(access.provider_keys)

    async def aclose(self) -> None:
        """End running streams in a retryable error, close links so that they come back, free the port."""
        if self._runner is None:
            return
        if self._server is not None:
            self._server.close()
        self.broker.shut(
            ApiError(ErrorCode.NO_PROVIDER_AVAILABLE, "The gateway is restarting.", retry_after_ms=2000)
        )
        for peer in [*self._peers]:
            peer.close(CloseCode.RESTART, "the gateway is restarting")
        await self._runner.cleanup()
        await self.ledger.aclose()
        self._runner = None


def create_gateway(settings: GatewaySettings) -> LocalGateway:
    """A gateway that isn't started yet. Raises `GatewayConfigError`."""
    return LocalGateway(settings)
