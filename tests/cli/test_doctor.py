"""`doctor` on broken set-ups: each names its fault, says what to do and ends as promised."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cli.doctor.checks import (
    Check,
    Verdict,
    check_daemon,
    check_disk,
    check_memory,
    check_mlx,
    check_python,
    check_service,
    overall,
)
from cli.main import run
from provider.system.lock import acquire
from tests.cli.processes import free_port

Out = pytest.CaptureFixture[str]

# In place of the real one, which takes seconds to load: `doctor` asks it in a process of its own.
MLX = (
    "__version__ = '0.32.4'\n"
    "class _Array:\n"
    "    def __add__(self, other): return self\n"
    "    def sum(self): return self\n"
    "    def item(self): return 8.0\n"
    "def ones(n): return _Array()\n"
    "def default_device(): return 'Device(cpu, 0)'\n"
    "class metal:\n"
    "    is_available = staticmethod(lambda: False)\n"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(home))
    for name, text in (
        ("mlx/__init__.py", ""),
        ("mlx/core.py", MLX),
        ("mlx_lm/__init__.py", "__version__ = '1'"),
    ):
        file = tmp_path / "stand-in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand-in"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A machine without a service manager, whatever this one has.
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    return home


@contextmanager
def gateway(seconds_ahead: float = 0) -> Iterator[int]:
    """Something that answers HTTP with a clock of its own; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(404)
            self.send_header("Date", formatdate(time.time() + seconds_ahead, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def configure(home: Path, port: int, text: str = "") -> None:
    own = free_port()
    (home / "config.toml").write_text(
        f'[gateway]\nurl = "ws://127.0.0.1:{port}"\n{text}\n'
        + (f"[local_gateway]\nport = {own}\n" if "[local_gateway]" not in text else "")
    )


def diagnose(capsys: Out) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it; exit code and checks by ID."""
    code = run(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"verdict", "checks"}
    checks = {check["id"]: check for check in document["checks"]}
    assert len(checks) == len(document["checks"])
    for check in checks.values():
        assert set(check) == {"id", "verdict", "detail", "remedy"}
        assert check["verdict"] != "failing" or check["remedy"]
    verdicts = {check["verdict"] for check in checks.values()}
    expected = "failing" if "failing" in verdicts else "unknown" if "unknown" in verdicts else "ok"
    assert document["verdict"] == expected
    assert code == {"ok": 0, "failing": 1, "unknown": 3}[expected]
    return code, checks


def failing(capsys: Out) -> dict[str, str]:
    """What fails, by ID, with its detail."""
    code, checks = diagnose(capsys)
    assert code == 1
    return {name: check["detail"] for name, check in checks.items() if check["verdict"] == "failing"}


def test_a_sound_machine_without_a_daemon_is_could_not_tell(home: Path, capsys: Out) -> None:
    with gateway() as port:
        configure(home, port)
        code, checks = diagnose(capsys)
    assert code == 3
    unsure = {name for name, check in checks.items() if check["verdict"] == "unknown"}
    assert unsure == {"memory", "process", "registered", "routable"}
    assert checks["process"]["detail"] == "no daemon runs"
    assert "malibu-provider start" in checks["process"]["remedy"]


def test_a_bad_configuration_is_a_failing_check(home: Path, capsys: Out) -> None:
    (home / "config.toml").write_text("[engine]\nslotz = 1\n")
    assert "engine.slotz: unknown key" in failing(capsys)["config"]


def test_a_gateway_that_cannot_be_reached(home: Path, capsys: Out) -> None:
    configure(home, free_port())
    assert "refused" in failing(capsys)["gateway"]


@pytest.mark.parametrize(("ahead", "words"), [(3600, "behind the gateway"), (-3600, "ahead of the gateway")])
def test_a_clock_that_is_an_hour_off(home: Path, capsys: Out, ahead: float, words: str) -> None:
    with gateway(ahead) as port:
        configure(home, port)
        assert words in failing(capsys)["clock"]


@pytest.mark.parametrize(
    ("check", "lines"),
    [
        ("token_file", 'token_file = "SECRET"'),
        ("provider_tokens_file", '[local_gateway]\nport = 0\nprovider_tokens_file = "SECRET"'),
        ("tls_key", '[local_gateway]\nport = 0\ntls_key = "SECRET"\ntls_cert = "SECRET"'),
    ],
)
def test_a_secret_that_others_can_read(home: Path, capsys: Out, check: str, lines: str) -> None:
    secret = home / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    with gateway() as port:
        configure(home, port, lines.replace("SECRET", str(secret)))
        found = failing(capsys)
    assert list(found) == [check]
    assert "mode 644" in found[check]


def test_a_key_that_others_can_read(home: Path, capsys: Out) -> None:
    (home / "key.pem").touch(mode=0o640)
    with gateway() as port:
        configure(home, port)
        assert list(failing(capsys)) == ["key_file"]


def test_a_port_that_another_program_has(home: Path, capsys: Out) -> None:
    with gateway() as port, gateway() as other:
        configure(home, port, f"[local_gateway]\nport = {other}")
        assert f"port {other} is taken" in failing(capsys)["port"]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70])
def test_names_that_are_no_hosts(home: Path, capsys: Out, host: str) -> None:
    (home / "config.toml").write_text(f'[gateway]\nurl = "wss://{host}"\n[local_gateway]\nhost = "{host}"\n')
    found = failing(capsys)
    assert host in found["port"]
    assert host in found["gateway"]


def test_an_mlx_that_does_not_load(home: Path, tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "stand-in" / "mlx" / "core.py").write_text(
        "raise ImportError('libmlx.so: wrong architecture')"
    )
    with gateway() as port:
        configure(home, port)
        assert "wrong architecture" in failing(capsys)["mlx"]


def test_a_daemon_that_does_not_answer(home: Path, capsys: Out) -> None:
    with gateway() as port, acquire(home / "daemon.lock"):
        configure(home, port)
        assert failing(capsys)["process"] == "the daemon doesn't answer"


def test_a_model_larger_than_the_machine(home: Path, tmp_path: Path, capsys: Out) -> None:
    folder = tmp_path / "huge"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(10**13)
    with gateway() as port:
        configure(home, port, f'[engine]\nmodels = ["{folder}"]')
        found = failing(capsys)
    assert list(found) == ["memory"]
    assert "huge: 10000.0 GB of weights" in found["memory"]


@pytest.mark.skipif(sys.platform == "darwin", reason="systemd's")
@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        ({"enabled": True, "running": False, "last_exit": 9}, "failing", "its last run ended with 9"),
        ({"enabled": True, "running": True}, "ok", "installed and running"),
        ({"enabled": False, "running": False}, "ok", "installed, stopped"),
        ({"no_bus": True}, "unknown", "installed, but systemd can't show"),
    ],
)
def test_the_service(
    home: Path,
    tmp_path: Path,
    capsys: Out,
    monkeypatch: pytest.MonkeyPatch,
    state: dict[str, Any],
    verdict: str,
    words: str,
) -> None:
    monkeypatch.setenv("PATH", f"{Path(__file__).parents[1] / 'fakes' / 'linux'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_PYTHON", sys.executable)
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path / "systemd.json"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "systemd.json").write_text(json.dumps(state))
    unit = tmp_path / "config" / "systemd" / "user" / "malibu-provider.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    with gateway() as port:
        configure(home, port)
        _, checks = diagnose(capsys)
    assert checks["service"]["verdict"] == verdict
    assert words in checks["service"]["detail"]


def test_two_services_are_one_too_many() -> None:
    found = {"running": True, "last_exit": None, "other": "Homebrew's (`brew services`)"}
    both = check_service(installed=True, **found)
    assert (both.verdict, "brew services stop" in (both.remedy or "")) == (Verdict.FAILING, True)
    assert check_service(installed=False, **found).detail == "Homebrew's (`brew services`) is installed"


def test_the_page_for_people_names_the_fault_and_the_remedy(home: Path, capsys: Out) -> None:
    (home / "config.toml").write_text("contract = 1\n")
    assert run(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "FAILING  config" in printed
    assert "→ correct the key" in printed


LINK = {"gateway": "wss://g", "registered": True, "routable": True, "reasons": []}


def daemon(state: str = "serving", **link: Any) -> Mapping[str, Any]:
    return {"process": {"state": state, "pid": 1, "reason": "why"}, "link": {**LINK, **link}}


@pytest.mark.parametrize(
    ("status", "name", "detail"),
    [
        (daemon(), None, ""),
        (daemon("idle"), "process", "idle: why"),
        (daemon(registered=False, routable=False, last_error="token refused"), "registered", "token refused"),
        (daemon(routable=False, reasons=["no_free_slot", "degraded"]), "routable", "no_free_slot, degraded"),
    ],
)
def test_what_the_daemon_says_of_itself(status: Mapping[str, Any], name: str | None, detail: str) -> None:
    found = {check.id: check.detail for check in check_daemon(status, running=True) if check.verdict != "ok"}
    if name is None:
        assert found == {}
    else:
        assert detail in found[name]


def test_limits() -> None:
    assert check_python((3, 10, 9)).verdict is Verdict.FAILING
    assert check_python((3, 11, 0)).verdict is Verdict.OK
    assert check_disk("/x", 1_999_999_999).verdict is Verdict.FAILING
    assert check_disk("/x", None).verdict is Verdict.UNKNOWN
    assert check_memory({"m": 10}, 11).verdict is Verdict.FAILING
    assert check_memory({"m": 10}, 12).verdict is Verdict.OK
    metal = {"version": "1", "mlx_lm": "1", "device": "Device(gpu, 0)", "metal": False}
    assert [check.verdict for check in check_mlx(metal, "", mac=True)] == ["ok", "failing"]
    assert [check.verdict for check in check_mlx({**metal, "metal": True}, "", mac=True)] == ["ok", "ok"]


def test_one_fault_outweighs_all_doubt() -> None:
    def of(*verdicts: Verdict) -> Verdict:
        return overall([Check("x", verdict, "") for verdict in verdicts])

    assert of(Verdict.OK, Verdict.UNKNOWN, Verdict.FAILING) is Verdict.FAILING
    assert of(Verdict.OK, Verdict.UNKNOWN) is Verdict.UNKNOWN
    assert of(Verdict.OK) is Verdict.OK
