"""May this provider join? Answered from its registration, its challenge and the pinned key. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from gateway_protocol.consents import registered_keys
from gateway_protocol.messages import PROTOCOL_VERSION, CloseCode, Refused, RefusedCode, Register
from gateway_protocol.signing import thumbprint, verify_registration

CLOSE_CODES: Final = {
    RefusedCode.MALFORMED: CloseCode.MALFORMED,
    RefusedCode.UNSUPPORTED_VERSION: CloseCode.VERSION,
    RefusedCode.BELOW_MINIMUM_VERSION: CloseCode.VERSION,
    RefusedCode.TOO_MANY: CloseCode.TOO_MANY,
}


@dataclass(frozen=True, slots=True)
class Dialled:
    """How the provider reached this gateway.

    `origins`: every spelling of the gateway's address that it answers to. `other_nonces`: of other
    challenges, to tell a replay from a wrong key.
    """

    gateway_id: str
    nonce: str
    origins: Sequence[str]
    other_nonces: Sequence[str] = ()


def origins_of(host: str, *, secure: bool) -> list[str]:
    """The origins that a `Host` header (checked before) can stand for; a proxy in front may speak TLS."""
    schemes = ("wss",) if secure else ("ws", "wss")
    found = [f"{scheme}://{host.lower()}" for scheme in schemes]
    # A port that is the scheme's own is left out of an origin, not always out of Host.
    found += [
        origin[: -len(":443")] for origin in found if origin.startswith("wss:") and origin.endswith(":443")
    ]
    found += [
        origin[: -len(":80")] for origin in found if origin.startswith("ws:") and origin.endswith(":80")
    ]
    return found


def check_registration(
    register: Register, dialled: Dialled, *, pinned: str | None, allowed: Collection[str] | None
) -> Refused | None:
    """`None` if the provider may join; then pin its key. `allowed`: thumbprints, `None` for any."""
    if register.protocol_version != PROTOCOL_VERSION:
        return refused(RefusedCode.UNSUPPORTED_VERSION, f"this gateway speaks version {PROTOCOL_VERSION}")
    if not register.public_key.isascii():
        return refused(RefusedCode.MALFORMED, "public_key is not base64url")
    if not _signed(register, dialled, [dialled.nonce]):
        if _signed(register, dialled, dialled.other_nonces):
            return refused(RefusedCode.NONCE_REUSED, "the signature answers another challenge than this one")
        return refused(
            RefusedCode.BAD_SIGNATURE,
            "the signature doesn't fit the key, this challenge or the address of this gateway",
        )
    if not may_serve(register, allowed):
        return refused(RefusedCode.KEY_NOT_ALLOWED, "this key is not on the gateway's list")
    if pinned is not None and pinned not in registered_keys(register):
        return refused(RefusedCode.KEY_MISMATCH, "another key is pinned for this provider_id")
    return None


def may_serve(register: Register, allowed: Collection[str] | None) -> bool:
    """Whether the key is on the list, or a key that is has consented to it, over others if need be.

    So a list needn't be written anew when a provider changes its key.
    """
    return allowed is None or any(thumbprint(key) in allowed for key in registered_keys(register))


def keys_to_pin(register: Register, pinned: str | None) -> list[str]:
    """The keys that followed the pinned one, oldest first, the registering one last."""
    keys = registered_keys(register)
    return keys[: keys.index(pinned)][::-1] if pinned in keys else [register.public_key]


def refused(code: RefusedCode, message: str, retry_after_ms: int | None = None) -> Refused:
    return Refused(code=code, message=message, retry_after_ms=retry_after_ms)


def close_code(code: RefusedCode) -> int:
    """What the websocket is closed with after `refused`."""
    return CLOSE_CODES.get(code, CloseCode.REFUSED)


def _signed(register: Register, dialled: Dialled, nonces: Sequence[str]) -> bool:
    return any(
        verify_registration(
            register.signature,
            gateway_id=dialled.gateway_id,
            gateway_url=origin,
            nonce=nonce,
            provider_id=register.provider_id,
            public_key=register.public_key,
        )
        for nonce in nonces
        for origin in dialled.origins
    )
