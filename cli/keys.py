"""`keys show` and `keys rotate`: the key this machine signs with."""

from __future__ import annotations

import json

from cli.control import ask
from cli.setup import paths
from gateway_protocol.keys import jwks
from provider.errors import ProviderError
from provider.system.identity import KEY_FILE, StoredIdentity, load_identity, rotate_key
from provider.system.lock import acquire, is_held


def _identity() -> StoredIdentity:
    state = paths().state
    if not (state / KEY_FILE).is_file():
        raise ProviderError("there is no key yet; the first `malibu-provider start` makes it")
    return load_identity(state)


def show_keys(*, as_json: bool) -> None:
    """Print provider ID and public key; the private half is never shown."""
    identity = _identity()
    if as_json:
        document = {
            "provider_id": identity.provider_id,
            "key_id": identity.key.key_id,
            "jwk": identity.key.jwk,
            "file": str(paths().state / KEY_FILE),
            # With these the document is a JWK Set too, which verifies receipts of earlier keys as well.
            **jwks(identity.public_keys),
        }
        print(json.dumps(document, indent=2))
        return
    print(f"provider ID  {identity.provider_id}")
    print(f"key ID       {identity.key.key_id}")
    print(f"public key   {identity.key.public_key}")
    print(f"kept in      {paths().state / KEY_FILE}")


def rotate() -> None:
    """Make a new key; a running daemon registers it at once, with the old key's consent."""
    _identity()
    running, _ = is_held(paths().lock_file)
    if running:
        key_id = ask("POST", "rotate-key")["key_id"]
        print(f"the new key is {key_id}; the running daemon registers it now")
    else:
        with acquire(paths().lock_file):
            key_id = rotate_key(paths().state).key.key_id
        print(f"the new key is {key_id}; the next start registers it")
    print("receipts signed by the old key stay valid: gateways keep its public half")
