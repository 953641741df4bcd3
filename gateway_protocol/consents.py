"""Keys that follow one another: each consent is an older key's signature under its successor's name. Pure.

    K1 ─consents to─▶ K2 ─consents to─▶ K3          shown as: previous = K2's to K3, earlier = (K1's to K2,)

A provider may change its key several times between two meetings with a gateway, so it shows all consents that
lead to its key, and the gateway looks for the one it knows among them (docs/protocol.md, "Identity").
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway_protocol.messages import PreviousKey, Register
from gateway_protocol.signing import verify_consent

# More changes of key than this between two meetings, and the gateway has to be told of the new one by hand.
CONSENTS: Final = 64


def leading_to(public_key: str, provider_id: str, consents: Iterable[PreviousKey]) -> tuple[PreviousKey, ...]:
    """The consents that lead to `public_key` without a gap, newest first, as they are given; at most 64."""
    found: list[PreviousKey] = []
    for consent in consents:
        fits = len(found) < CONSENTS and verify_consent(
            consent.signature,
            provider_id=provider_id,
            previous_public_key=consent.public_key,
            public_key=public_key,
        )
        if not fits:
            break
        found.append(consent)
        public_key = consent.public_key
    return tuple(found)


def registered_keys(register: Register) -> list[str]:
    """The key that registers and, behind it, those that consented to it one after another."""
    shown = (() if register.previous is None else (register.previous,)) + register.earlier
    consents = leading_to(register.public_key, register.provider_id, shown)
    return [register.public_key, *(consent.public_key for consent in consents)]
