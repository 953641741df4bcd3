"""`start --local` behind everything a gateway can ask of strangers: its own daemon gets in all the same."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

from gateway_protocol.receipts import read_receipt
from tests.cli.processes import Running, command
from tests.e2e.processes import MODEL, write_script
from tests.provider.link.test_connection import self_signed


def test_certificate_tokens_and_known_keys(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    (tmp_path / "tokens").write_text("a-token-of-another-provider\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        "[local_gateway]\n"
        f'tls_cert = "{certificate}"\n'
        f'tls_key = "{key}"\n'
        f'provider_tokens_file = "{tmp_path / "tokens"}"\n'
        f'provider_keys = ["{"x" * 43}"]\n'
    )
    script = write_script(tmp_path / "script", {"text": "Hello!"})
    arguments = ["start", "--local", "--port", "0", "--engine", "scripted", "--script", str(script)]
    with Running(home, *arguments, "--model", MODEL) as daemon:
        url = daemon.wait_for("ready: ").split()[1]
        assert url.startswith("https://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(certificate))
        before = signer(url, trust)
        # The list was made for this run's key; the next one's it learns from the consent to it.
        for _ in range(2):
            assert command(home, "keys", "rotate").returncode == 0
        after = signer(url, trust)
        assert before != after == daemon.status()["process"]["key_id"]


def signer(url: str, trust: ssl.SSLContext) -> str:
    """Who signed an answer, once there is one: the daemon is away for a moment when its key changes."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=60, context=trust) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 503):
                raise
            time.sleep(0.1)
        else:
            assert answer["choices"][0]["message"]["content"] == "Hello!"
            return read_receipt(answer["malibu"]["receipt"])[0]
    raise AssertionError("the daemon did not come back")
