"""Who is asking: the API key of a request, its limits, its place in the queue, its tenant."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from gateway_protocol.errors import ApiError, ErrorCode
from provider.local_gateway.access import host_name, is_loopback
from provider.local_gateway.api_keys import ApiKey, KeyRing, KeysFile, key_hash
from provider.local_gateway.rate import Rate
from provider.local_gateway.settings import Caps

OPEN: Final = "local"


@dataclass(frozen=True, slots=True)
class Buyer:
    """`tenant`: for the prompt cache, opaque. `line`: in the queue. `key`: `None` on an open gateway."""

    key_id: str
    tenant: str
    line: str
    key: ApiKey | None = None


class Buyers:
    """`keys` `None`: an open gateway, any key is taken. `secret`: makes tenants opaque and lasting."""

    def __init__(self, keys: KeysFile | None, secret: bytes, caps: Caps) -> None:
        self._loop = asyncio.get_running_loop()
        self._keys = keys
        self._secret = secret
        self._caps = caps
        self._rate = Rate()
        self._running: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        return self._keys is None

    def _ring(self) -> KeyRing | None:
        return None if self._keys is None else self._keys.ring(self._loop.time())

    def name_of(self, key_id: str) -> str:
        """A key's name for the page and for sums; the ID where it isn't known any more."""
        ring = self._ring()
        keys = ring.keys if ring else ()
        return next((key.name for key in keys if key.id == key_id), key_id)

    def identify(self, request: web.Request) -> Buyer:
        """The buyer behind a request. Raises `invalid_api_key`."""
        given, ring = _bearer(request), self._ring()
        if ring is None:
            return Buyer(key_id=OPEN, tenant=OPEN, line=key_hash(given or ""))
        key = ring.find(given) if given else None
        if key is None:
            wrong = (
                "That API key is not known here."
                if given
                else "An API key is needed: Authorization: Bearer …"
            )
            raise ApiError(ErrorCode.INVALID_API_KEY, wrong)
        tenant = hmac.new(self._secret, key.id.encode(), hashlib.sha256).hexdigest()
        return Buyer(key_id=key.id, tenant=tenant, line=key.id, key=key)

    @contextmanager
    def admit(self, request: web.Request) -> Iterator[Buyer]:
        """A buyer within its limits, counted as long as its request runs. Raises `ApiError`."""
        buyer = self.identify(request)
        per_minute = (buyer.key and buyer.key.requests_per_minute) or self._caps.requests_per_minute
        if per_minute is not None:
            wait = self._rate.take(buyer.line, per_minute, self._loop.time())
            if wait > 0:
                raise _limited(f"At most {per_minute} requests a minute.", wait)
        most = (buyer.key and buyer.key.streams) or self._caps.streams_per_key
        if most is not None and self._running[buyer.line] >= most:
            raise _limited(f"At most {most} requests at a time.", 1.0)
        self._running[buyer.line] += 1
        try:
            yield buyer
        finally:
            self._running[buyer.line] -= 1
            if not self._running[buyer.line]:
                del self._running[buyer.line]

    def check_admin(self, request: web.Request) -> None:
        """The page and its figures: this machine, or an admin key from elsewhere. Raises `ApiError`.

        A browser can't put a key into `Authorization` by itself, so the key is also taken as a password.
        """
        if _is_here(request):
            return
        ring = self._ring()
        if ring is None:
            raise ApiError(ErrorCode.FORBIDDEN, "This page is for the machine that runs the gateway.")
        given = _bearer(request) or _password(request)
        key = ring.find(given) if given else None
        if key is None:
            raise ApiError(ErrorCode.INVALID_API_KEY, "An admin's API key is needed, as bearer or password.")
        if not key.admin:
            raise ApiError(ErrorCode.FORBIDDEN, "That API key is not an admin's.")


def _is_here(request: web.Request) -> bool:
    """Whether the request comes from this machine, and not through a proxy on it."""
    name = host_name(request.headers.get("Host", ""))
    forwarded = any(header in request.headers for header in ("Forwarded", "X-Forwarded-For"))
    return not forwarded and name is not None and is_loopback(name) and is_loopback(request.remote or "")


def _password(request: web.Request) -> str | None:
    """The password of HTTP Basic (RFC 7617)."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2] or None
    except ValueError:
        return None


def _bearer(request: web.Request) -> str | None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() or None if scheme.lower() == "bearer" else None


def _limited(message: str, wait: float) -> ApiError:
    return ApiError(ErrorCode.RATE_LIMITED, message, retry_after_ms=round(wait * 1000))
