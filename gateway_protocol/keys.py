"""Ed25519 keys of providers: public and private halves, thumbprints, plain signatures. No file I/O.

Text form of a public key everywhere: base64url of its 32 bytes, the `x` of its JWK (RFC 8037).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gateway_protocol.errors import ProtocolError

ALGORITHM: Final = "Ed25519"
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"


class SigningError(ProtocolError):
    """A key, a signature or a token is not what it must be.

    SigningError
    ├── MalformedKey        not an Ed25519 key in the expected form
    ├── MalformedToken      not a compact JWS of the expected `typ` and `alg`
    ├── UnknownKey          signed by a key that the JWKS doesn't hold
    └── BadSignature        the signature doesn't fit the key
    """


class MalformedKey(SigningError):
    pass


class MalformedToken(SigningError):
    pass


class UnknownKey(SigningError):
    """`key_id`: the thumbprint that the token names."""

    def __init__(self, key_id: str) -> None:
        super().__init__("the signing key is not among the known keys")
        self.key_id = key_id


class BadSignature(SigningError):
    pass


def b64url(data: bytes) -> str:
    """Base64url without padding (RFC 7515, section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def unb64url(text: str) -> bytes:
    """Inverse of `b64url`, refusing every other spelling of the same bytes; raises `ValueError`."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64url") from None
    if b64url(data) != text:
        raise ValueError("not canonical base64url")
    return data


def thumbprint(public_key: str) -> str:
    """The `key_id` of a public key (base64url, 32 bytes): RFC 7638, members of RFC 8037 A.3."""
    members = '{"crv":"Ed25519","kty":"OKP","x":"' + public_key + '"}'
    return b64url(hashlib.sha256(members.encode("ascii")).digest())


def public_jwk(public_key: str) -> dict[str, str]:
    """A public key as a JWKS entry."""
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": public_key,
        "kid": thumbprint(public_key),
        "alg": ALGORITHM,
        "use": "sig",
    }


def jwks(public_keys: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    """A JWK Set of public keys, in the order given."""
    return {"keys": [public_jwk(key) for key in public_keys]}


def mint_provider_id() -> str:
    """`prov_` + 26 random base32 characters (130 bits); kept when the key is rotated."""
    return "prov_" + "".join(secrets.choice(_BASE32) for _ in range(26))


class ProviderKey:
    """The private key of a provider. Its text forms never appear in `repr`."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private = private_key
        self.public_key: Final = b64url(private_key.public_key().public_bytes_raw())
        self.key_id: Final = thumbprint(self.public_key)

    def __repr__(self) -> str:
        return f"ProviderKey(key_id={self.key_id!r})"

    @classmethod
    def generate(cls) -> ProviderKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> ProviderKey:
        """Read what `to_pem` wrote. Raises `MalformedKey`."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            raise MalformedKey("not a PEM private key without a password") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise MalformedKey("not an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """PKCS #8 in PEM, unencrypted: the caller keeps it where nobody else can read it."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def jwk(self) -> dict[str, str]:
        """The public half as a JWKS entry."""
        return public_jwk(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """The 64-byte signature of `data`."""
        return self._private.sign(data)


def verify_signature(public_key: str, signature: str, data: bytes) -> bool:
    """Whether a base64url signature over `data` is that of a base64url public key; malformed ones are not."""
    try:
        _load_public(public_key).verify(unb64url(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=256)
def _load_public(public_key: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(unb64url(public_key))
