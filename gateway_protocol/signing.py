"""What a provider signs: its registration, its consent to a new key, and compact JWS.

The face of three files: `keys` (Ed25519 keys and thumbprints), `jws` (receipts and status reports are such
tokens) and, here, the two signatures of `register`. Each signed text begins with a domain of its own, so that
no signature can be used for another purpose.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import rfc8785

from gateway_protocol.jws import find_key, make_jws, read_jws, verify_jws
from gateway_protocol.keys import (
    ALGORITHM,
    BadSignature,
    MalformedKey,
    MalformedToken,
    ProviderKey,
    SigningError,
    UnknownKey,
    b64url,
    jwks,
    mint_provider_id,
    public_jwk,
    thumbprint,
    unb64url,
    verify_signature,
)

__all__ = [
    "ALGORITHM",
    "REGISTER_DOMAIN",
    "ROTATE_DOMAIN",
    "BadSignature",
    "MalformedKey",
    "MalformedToken",
    "ProviderKey",
    "SigningError",
    "UnknownKey",
    "b64url",
    "consent_bytes",
    "find_key",
    "jwks",
    "make_jws",
    "mint_provider_id",
    "origin_of",
    "public_jwk",
    "read_jws",
    "registration_bytes",
    "sign_consent",
    "sign_registration",
    "thumbprint",
    "unb64url",
    "verify_consent",
    "verify_jws",
    "verify_registration",
    "verify_signature",
]

REGISTER_DOMAIN: Final = "malibu.register.v1"
ROTATE_DOMAIN: Final = "malibu.rotate.v1"
_DEFAULT_PORTS: Final = {"ws": 80, "http": 80, "wss": 443, "https": 443}


def origin_of(url: str) -> str:
    """`scheme://host[:port]` of a URL, lower case, without its scheme's own port; raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError("not an absolute ws, wss, http or https URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


def registration_bytes(
    *, gateway_id: str, gateway_url: str, nonce: str, provider_id: str, public_key: str
) -> bytes:
    """What `register.signature` covers. `gateway_url`: the dialled URL's `origin_of`."""
    return rfc8785.dumps(
        {
            "domain": REGISTER_DOMAIN,
            "gateway_id": gateway_id,
            "gateway_url": gateway_url,
            "nonce": nonce,
            "provider_id": provider_id,
            "public_key": public_key,
        }
    )


def sign_registration(
    key: ProviderKey, *, gateway_id: str, gateway_url: str, nonce: str, provider_id: str
) -> str:
    """The value of `register.signature`: proof of the key, for this gateway and this challenge alone."""
    data = registration_bytes(
        gateway_id=gateway_id,
        gateway_url=gateway_url,
        nonce=nonce,
        provider_id=provider_id,
        public_key=key.public_key,
    )
    return b64url(key.sign(data))


def verify_registration(
    signature: str, *, gateway_id: str, gateway_url: str, nonce: str, provider_id: str, public_key: str
) -> bool:
    """Whether the registration is signed by the key it names, for exactly these values."""
    data = registration_bytes(
        gateway_id=gateway_id,
        gateway_url=gateway_url,
        nonce=nonce,
        provider_id=provider_id,
        public_key=public_key,
    )
    return verify_signature(public_key, signature, data)


def consent_bytes(*, provider_id: str, previous_public_key: str, public_key: str) -> bytes:
    """What `register.previous.signature` covers: the pinned key names its successor for one identity."""
    return rfc8785.dumps(
        {
            "domain": ROTATE_DOMAIN,
            "previous_public_key": previous_public_key,
            "provider_id": provider_id,
            "public_key": public_key,
        }
    )


def sign_consent(previous: ProviderKey, *, provider_id: str, public_key: str) -> str:
    """The pinned key's consent to `public_key`; made once at rotation, then the old key may be dropped."""
    data = consent_bytes(
        provider_id=provider_id, previous_public_key=previous.public_key, public_key=public_key
    )
    return b64url(previous.sign(data))


def verify_consent(signature: str, *, provider_id: str, previous_public_key: str, public_key: str) -> bool:
    """Whether the previous key agreed to `public_key`; the caller compares that key with the pinned one."""
    data = consent_bytes(
        provider_id=provider_id, previous_public_key=previous_public_key, public_key=public_key
    )
    return verify_signature(previous_public_key, signature, data)
