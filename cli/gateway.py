"""`gateway key add` and `gateway usage`."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from cli.setup import load_config, paths
from provider.errors import ProviderError
from provider.local_gateway.api_keys import KeysError, add_key, load_keys
from provider.local_gateway.ledger_file import LedgerError, usage_of

_KEYS = "local_gateway.keys_file"


def _keys_file(config_file: Path | None) -> Path:
    return load_config(config_file, made_now=_KEYS).settings.local_gateway.keys_file or paths().keys_file


def add(name: str, *, admin: bool, config_file: Path | None) -> None:
    """Make a key and print its secret, which is kept nowhere."""
    file = _keys_file(config_file)
    first = not file.exists()
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        secret = add_key(file, name, created=created, admin=admin)
    except KeysError as error:
        raise ProviderError(str(error)) from None
    except OSError as error:
        raise ProviderError(f"can't write {file}: {error.strerror}") from None
    print(secret)
    print(f"This key is shown once; {file} keeps only its hash.")
    if first:
        # A gateway that began without keys is open and stays so: closing it under its users is a decision.
        print("A gateway that is running took any key so far; start it again to ask for this one.")
    else:
        print("A running gateway knows it within a second.")


def show_usage(*, as_json: bool, config_file: Path | None) -> None:
    """What the gateway's state file has counted, newest day first."""
    try:
        sums = usage_of(paths().gateway_state)
    except LedgerError as error:
        raise ProviderError(str(error)) from None
    names = _names(_keys_file(config_file))
    rows = [{**asdict(each), "key": names.get(each.key_id)} for each in reversed(sums)]
    if as_json:
        print(json.dumps({"usage": rows}, indent=2, ensure_ascii=False))
        return
    for row in rows:
        print(
            f"{row['day']}  {row['key'] or row['key_id']:<20} {row['jobs']:>7} jobs"
            f" {row['prompt_tokens']:>11} in {row['completion_tokens']:>11} out  {row['model']}"
        )
    if not rows:
        print("nothing yet")


def _names(file: Path) -> dict[str, str]:
    """Key ID → the name its owner gave it; a key that was deleted since has none."""
    try:
        return {key.id: key.name for key in load_keys(file).keys}
    except KeysError:
        return {}
