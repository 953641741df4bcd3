"""The embedded gateway of `start --local`, and the daemon's own way into it.

Whatever the gateway asks of strangers (a token, a known key, a certificate of a public authority), its own
daemon must get in: it hands the gateway a token made for this run and its key, and trusts its certificate.
"""

from __future__ import annotations

import secrets
import ssl
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from provider.link.dial import LinkSettings
from provider.local_gateway.settings import GatewaySettings

# An address that means "all of this machine's" can be bound, not dialled everywhere.
_DIALLED = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def admitting(settings: GatewaySettings, *, key_id: str) -> tuple[GatewaySettings, str]:
    """The settings with this daemon let in, and the token it is to show."""
    token = secrets.token_urlsafe(32)
    access = settings.access
    # Without a list anyone may come, and a list of one would shut the others out.
    tokens = access.provider_tokens | {token} if access.provider_tokens else access.provider_tokens
    keys = None if access.provider_keys is None else access.provider_keys | {key_id}
    return replace(settings, access=replace(access, provider_tokens=tokens, provider_keys=keys)), token


def own_link(link: LinkSettings, *, link_url: str, token: str, certificate: Path | None) -> LinkSettings:
    """How to dial the gateway in this process; nothing of it leaves the machine."""
    parts = urlsplit(link_url)
    host = _DIALLED.get(parts.hostname or "")
    if host is not None:
        link_url = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))
    return replace(
        link,
        url=link_url,
        token_file=None,
        token=token,
        allow_insecure=True,
        tls=None if certificate is None else _trusting(certificate),
    )


def _trusting(certificate: Path) -> ssl.SSLContext:
    """Exactly this certificate, whatever names are in it."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
