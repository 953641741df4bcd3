"""Who this provider is: its key and its ID, made at the first start and kept in the state folder.

`key.pem` holds the private key (mode 0600), `identity.json` the ID and, after rotations, the consents that
lead from earlier keys to this one (docs/protocol.md, "Identity") and the public halves of those keys, whose
receipts stay verifiable here. Each is replaced whole.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway_protocol.consents import CONSENTS, leading_to
from gateway_protocol.messages import PreviousKey
from gateway_protocol.signing import MalformedKey, ProviderKey, mint_provider_id, sign_consent
from provider.errors import ProviderError

KEY_FILE = "key.pem"
IDENTITY_FILE = "identity.json"
RETIRED_KEYS = 64


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """`consents`: shown to gateways that still know an earlier key, newest first. `retired`: earlier public
    keys, oldest first."""

    provider_id: str
    key: ProviderKey
    consents: tuple[PreviousKey, ...] = ()
    retired: tuple[str, ...] = ()

    @property
    def public_keys(self) -> tuple[str, ...]:
        """Every key whose receipts are this provider's."""
        return tuple(dict.fromkeys((*self.retired, self.key.public_key)))


def load_identity(state: Path) -> StoredIdentity:
    """The identity of this state folder, made if there is none. The caller holds the folder's lock.

    Raises `ProviderError` for files that are damaged, or a key that others may read.
    """
    key_file, identity_file = state / KEY_FILE, state / IDENTITY_FILE
    if not key_file.exists() and not identity_file.exists():
        identity = StoredIdentity(mint_provider_id(), ProviderKey.generate())
        _store(state, identity)
        return identity
    try:
        mode = stat.S_IMODE(key_file.stat().st_mode)
        if mode & 0o077:
            raise ProviderError(
                f"{key_file} may be read by others (mode {mode:o}); run: chmod 600 {key_file}"
            )
        key = ProviderKey.from_pem(key_file.read_bytes())
        document = json.loads(identity_file.read_text("utf-8"))
        provider_id = str(document["provider_id"])
        retired = tuple(str(public_key) for public_key in document.get("retired", ()))
        return StoredIdentity(provider_id, key, _consents(document, provider_id, key), retired)
    except (OSError, ValueError, KeyError, TypeError, MalformedKey) as error:
        raise ProviderError(
            f"the identity in {state} is damaged ({type(error).__name__}): restore {KEY_FILE} and"
            f" {IDENTITY_FILE} from a backup, or remove both to start as a new provider"
        ) from None


def rotate_key(state: Path) -> StoredIdentity:
    """A new key for the same provider, with the old one's consent. The caller holds the folder's lock.

    The consent is written before the key, and consent to any other key than that in force is ignored: so a
    crash between the two leaves the old key in force.
    """
    old = load_identity(state)
    key = ProviderKey.generate()
    signature = sign_consent(old.key, provider_id=old.provider_id, public_key=key.public_key)
    consent = PreviousKey(public_key=old.key.public_key, signature=signature)
    retired = (*old.retired, old.key.public_key)[-RETIRED_KEYS:]
    identity = StoredIdentity(old.provider_id, key, (consent, *old.consents)[:CONSENTS], retired)
    _store(state, identity)
    return identity


def _consents(document: Mapping[str, Any], provider_id: str, key: ProviderKey) -> tuple[PreviousKey, ...]:
    """Those that lead to the key in force. The newest is of no use where a crash kept its key from it."""
    newest = document["previous"]
    written = ([] if newest is None else [newest]) + list(document.get("earlier", ()))
    consents = [PreviousKey.model_validate(consent) for consent in written]
    return leading_to(key.public_key, provider_id, consents) or leading_to(
        key.public_key, provider_id, consents[1:]
    )


def _store(state: Path, identity: StoredIdentity) -> None:
    consents = [consent.model_dump() for consent in identity.consents]
    document = {
        "provider_id": identity.provider_id,
        "previous": consents[0] if consents else None,
        "earlier": consents[1:],
        "retired": list(identity.retired),
    }
    _replace(state / IDENTITY_FILE, json.dumps(document, indent=2).encode() + b"\n")
    _replace(state / KEY_FILE, identity.key.to_pem())


def _replace(file: Path, data: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    draft = file.with_name(f".{file.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
    except OSError as error:
        raise ProviderError(f"can't write {file}: {error.strerror}") from error
