"""`receipt verify`: is this the receipt of that request and that answer, and whose key signed it?"""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.setup import paths
from gateway_protocol.keys import jwks
from gateway_protocol.receipts import UnreadableRecord, Verdict, Verification, read_response, verify
from provider.errors import ProviderError, UnknownStateError, UsageError
from provider.system.identity import KEY_FILE, load_identity
from provider.unreachable import unreachable_words

_FETCH_SECONDS = 10.0
_KEYS_BYTES = 4 * 1024 * 1024
EXIT_CODES: Mapping[Verdict, int] = {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.INCONCLUSIVE: 3}


def verify_receipt(
    *, receipt: Path | None, request: Path, response: Path, keys: str | None, as_json: bool
) -> int:
    """Print the verdict; the exit code: 0 valid, 1 invalid, 3 inconclusive."""
    request_text, response_text = _read(request, "--request"), _read(response, "--response")
    try:
        token = _read(receipt, "--receipt") if receipt else read_response(response_text).receipt
        if token is None:
            raise UsageError("the response holds no receipt; give it with --receipt")
        result = verify(token, request_text, response_text, _known_keys(keys))
    except UnreadableRecord as error:
        raise UsageError(str(error)) from None
    if as_json:
        print(json.dumps(result.as_dict(), indent=2, ensure_ascii=False))
    else:
        _show(result)
    return EXIT_CODES[result.verdict]


def _show(result: Verification) -> None:
    print(result.verdict.value)
    for finding in result.findings:
        print(f"  {finding.difference.value}: {finding.message}")
    if result.receipt is not None:
        claims = result.receipt
        print(
            f"  provider {claims.provider_id}, model {claims.model}, job {claims.job_id}, key {result.key_id}"
        )
    if result.verdict is Verdict.INCONCLUSIVE:
        print("  give the provider's keys with --keys: a file, or the gateway's …/v1/providers/keys")


def _read(file: Path, flag: str) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{flag}: can't read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{flag}: {file} is not UTF-8") from None


def _known_keys(keys: str | None) -> Mapping[str, Any]:
    """A JWK Set. Without `--keys` it holds this machine's own keys, earlier ones too, if it has any."""
    if keys is None:
        return _own_keys()
    if keys.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(keys, timeout=_FETCH_SECONDS) as response:
                text = response.read(_KEYS_BYTES).decode("utf-8")
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnknownStateError(f"--keys: can't fetch {keys}: {_words(error)}") from None
    else:
        text = _read(Path(keys), "--keys")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"--keys: {keys} is not JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise UsageError(f"--keys: {keys} is not a JWK Set")
    return document


def _words(error: Exception) -> str:
    """urllib wraps what really went wrong."""
    if isinstance(error, urllib.error.HTTPError):
        return str(error)
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, UnicodeDecodeError):
        return "what it answers is not UTF-8"
    if isinstance(cause, OSError | http.client.HTTPException):
        return unreachable_words(cause)
    return str(cause)


def _own_keys() -> Mapping[str, Any]:
    state = paths().state
    if not (state / KEY_FILE).is_file():
        return jwks([])
    try:
        return jwks(load_identity(state).public_keys)
    except ProviderError:
        return jwks([])
