"""Which `Host` and `Origin` a request may carry: pure (DNS rebinding, foreign pages in a browser).

A browser that was tricked into resolving a stranger's name to this machine sends that name in `Host`; an
address can't be rebound, so literal addresses pass. A page may call the gateway from a loopback origin, from
the gateway's own, or from one that the settings name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit


def host_name(host: str) -> str | None:
    """The name or address in a `Host` header, lower case, without its port; `None` if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
        name = parts.hostname
    except ValueError:
        return None
    if not name or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return name.rstrip(".")


def is_loopback(name: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _named(text: str) -> str:
    """As browsers spell it, however its owner has: names know no upper case."""
    return text.lower().rstrip(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """`bound`: the host the gateway listens on. `hosts`, `origins`: allowed beyond the usual ones."""

    bound: str
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def host_allowed(self, host: str | None) -> bool:
        name = host_name(host) if host else None
        if name is None:
            return False
        if is_loopback(name) or name in {_named(host) for host in (self.bound, *self.hosts)}:
            return True
        return not is_loopback(self.bound) and _address(name) is not None

    def origin_allowed(self, origin: str, host: str | None) -> bool:
        if origin in {_named(origin.rstrip("/")) for origin in self.origins}:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not name:
            return False
        return is_loopback(name) or (host is not None and parts.netloc.lower() == host.lower())
