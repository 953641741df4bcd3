"""`start --local` behind everything a gateway can ask of strangers: its own daemon gets in all the same."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path

from tests.cli.processes import Running
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
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        trust = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(request, timeout=30, context=trust) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "Hello!"
