"""Compact JWS (RFC 7515) with one algorithm: "Ed25519" (RFC 9864), so a token can't choose how it is checked.

A key counts only when it comes from outside the token (a JWK Set), found by its RFC 7638 thumbprint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import rfc8785

from gateway_protocol.keys import (
    ALGORITHM,
    BadSignature,
    MalformedToken,
    ProviderKey,
    UnknownKey,
    b64url,
    thumbprint,
    unb64url,
    verify_signature,
)


def make_jws(key: ProviderKey, typ: str, payload: bytes) -> str:
    """A compact JWS over `payload`; its header holds `alg`, `kid`, `typ` and nothing else."""
    signing_input = f"{_encoded_header(key.key_id, typ)}.{b64url(payload)}"
    return f"{signing_input}.{b64url(key.sign(signing_input.encode('ascii')))}"


@lru_cache(maxsize=16)
def _encoded_header(key_id: str, typ: str) -> str:
    return b64url(rfc8785.dumps({"alg": ALGORITHM, "kid": key_id, "typ": typ}))


def read_jws(token: str, typ: str) -> tuple[str, bytes]:
    """Key ID and payload of a token, *not yet verified*. Raises `MalformedToken`."""
    parts = token.split(".")
    if len(parts) != 3:
        raise MalformedToken("not a compact JWS of three parts")
    try:
        header = json.loads(unb64url(parts[0]))
        payload = unb64url(parts[1])
        unb64url(parts[2])
    except (ValueError, RecursionError):
        raise MalformedToken("a part is not base64url, or the header is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("kid"), str):
        raise MalformedToken("the header names no key")
    if header.get("alg") != ALGORITHM:
        raise MalformedToken(f"`alg` is not {ALGORITHM}")
    if header.get("typ") != typ:
        raise MalformedToken(f"`typ` is not {typ}")
    if "crit" in header or "b64" in header:
        raise MalformedToken("the header asks for an extension that isn't known here")
    return header["kid"], payload


def verify_jws(token: str, typ: str, keys: Mapping[str, Any]) -> bytes:
    """The payload of a token signed by a key of the JWK Set `keys`.

    Raises `MalformedToken`, `UnknownKey` or `BadSignature`. Nothing in the token itself can add a key.
    """
    key_id, payload = read_jws(token, typ)
    public_key = find_key(keys, key_id)
    signing_input, _, signature = token.rpartition(".")
    if not verify_signature(public_key, signature, signing_input.encode("ascii")):
        raise BadSignature("the signature doesn't fit the key")
    return payload


def find_key(keys: Mapping[str, Any], key_id: str) -> str:
    """The public key of a JWK Set whose computed thumbprint is `key_id`; a `kid` member is not believed."""
    entries = keys.get("keys")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("kty") != "OKP" or entry.get("crv") != "Ed25519":
            continue
        public_key = entry.get("x")
        if isinstance(public_key, str) and public_key.isascii() and thumbprint(public_key) == key_id:
            return public_key
    raise UnknownKey(key_id)
