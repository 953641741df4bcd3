"""A daemon as its owner lives with it: pauses, schedule, books, reports, metrics; all with real processes."""

from __future__ import annotations

import datetime
import http.client
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs
import psutil
import pytest

from gateway_protocol.receipts import verify_status
from provider.system.paths import resolve_paths
from tests.cli.processes import COMMAND, SECONDS, Running, command, environment, free_port
from tests.fakes.fake_gateway import FakeGateway

MODEL = "mlx-community/Qwen3-8B-4bit"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "status.schema.json").read_text("utf-8"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.jsonl"
    lines = [
        {"match": "slowly", "text": "one two three four", "chars_per_token": 2, "ms_per_token": 500},
        {"match": "story", "text": "once upon a time " * 40, "chars_per_token": 4, "ms_per_token": 1},
        {"text": "Hello!"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def start(home: Path, script: Path, *more: str) -> Running:
    return Running(home, "start", "--engine", "scripted", "--script", str(script), "--model", MODEL, *more)


def config(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text)


def ask(url: str, content: str = "Hi") -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]["code"]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
        return text


class _Control(http.client.HTTPConnection):
    """The daemon's control socket: a command would take longer to start than some states last."""

    def __init__(self, home: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = resolve_paths({"MALIBU_PROVIDER_HOME": str(home)}).control_socket

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SECONDS)
        self.sock.connect(str(self._path))


def look(daemon: Running) -> dict[str, Any]:
    control = _Control(daemon.home)
    try:
        control.request("GET", "/status")
        document: dict[str, Any] = json.loads(control.getresponse().read())
        return document
    finally:
        control.close()


def until(daemon: Running, fact: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The first status document of which `fact` holds."""
    ends = time.monotonic() + SECONDS
    while True:
        status = look(daemon)
        if fact(status):
            return status
        assert daemon.process.poll() is None, daemon.lines
        assert time.monotonic() < ends, json.dumps(status, indent=1)


def test_pause_and_resume_reach_the_gateway_and_the_memory(home: Path, tmp_path: Path, script: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Running(tmp_path / "other", "gateway", "--port", str(port)) as gateway:
        gateway.wait_for("ready: ")
        with start(home, script, "--gateway", f"ws://127.0.0.1:{port}") as daemon:
            daemon.wait_for("ready: ")
            status = look(daemon)
            child = status["engine"]["child_pid"]
            assert status["health"]["summary"].startswith("ready: routable, ")
            assert ask(url) == "Hello!"

            paused = command(home, "pause")
            assert paused.stdout == "paused until `malibu-provider resume`\n"
            status = until(daemon, lambda found: found["engine"]["parked"] and not found["link"]["routable"])
            assert status["health"]["summary"] == "paused: paused by its owner until `malibu-provider resume`"
            assert status["link"]["reasons"] == ["paused_by_policy"]
            assert [pause["reason"] for pause in status["policy"]["pauses"]] == ["paused_by_owner"]
            assert status["models"][0]["state"] == "unloaded"
            assert not psutil.pid_exists(child)
            assert json.loads(get(f"{url}/v1/status"))["status"] == "idle"
            assert ask(url) == "no_provider_available"

            assert command(home, "resume").stdout.startswith("resumed; ")
            until(daemon, lambda found: found["link"]["routable"])
            assert ask(url) == "Hello!"
            assert look(daemon)["engine"]["restarts"] == 0


def test_a_running_answer_outlives_a_pause(home: Path, script: Path) -> None:
    port = free_port()
    answers: list[Any] = []
    with start(home, script, "--local", "--port", str(port)) as daemon:
        daemon.wait_for("ready: ")
        buyer = threading.Thread(
            target=lambda: answers.append(ask(f"http://127.0.0.1:{port}", "slowly please"))
        )
        buyer.start()
        until(daemon, lambda found: found["jobs"]["running"] == 1)
        assert command(home, "pause").returncode == 0
        assert look(daemon)["policy"]["paused"]
        buyer.join()
        assert answers == ["one two three four"]
        until(daemon, lambda found: found["engine"]["parked"])


@pytest.mark.slow
def test_what_was_stopped_stays_stopped_and_nothing_written_is_lost(home: Path, script: Path) -> None:
    port = str(free_port())
    with start(home, script, "--local", "--port", port) as daemon:
        daemon.wait_for("ready: ")
        for _ in range(3):
            assert ask(f"http://127.0.0.1:{port}") == "Hello!"
        status = until(daemon, lambda found: found["today"]["completed"] == 3)
        assert status["counters"]["jobs_completed"] == 3
        command(home, "pause", "--for", "2h")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.end()
    history = json.loads(command(home, "history", "--json").stdout)
    assert [(day["model"], day["completed"]) for day in history["days"]] == [(MODEL, 3)]

    with start(home, script, "--local", "--port", port) as daemon:
        line = daemon.wait_for("paused: ")
        assert line.startswith("paused: paused by its owner until ")
        status = look(daemon)
        assert status["process"]["state"] == "serving"
        assert (status["engine"]["parked"], status["engine"]["child_pid"]) == (True, None)
        assert status["today"]["completed"] == 3
        assert status["counters"]["jobs_completed"] == 0
        assert command(home, "resume").returncode == 0
        daemon.wait_for("ready: ")
        assert ask(f"http://127.0.0.1:{port}") == "Hello!"
        assert "Hello!" not in (home / "history.jsonl").read_text()


def test_outside_its_windows_and_with_a_full_disk_it_says_so(home: Path, script: Path) -> None:
    day = (datetime.datetime.now().astimezone() + datetime.timedelta(days=3)).strftime("%a")
    config(home, f'[policy]\nwindows = ["{day} 10:00-11:00"]\nfree_disk_gb = 1e9\n')
    with start(home, script, "--local", "--port", str(free_port())) as daemon:
        line = daemon.wait_for("paused: ")
        assert f"outside the windows of policy.windows; it opens {day} 10:00; the disk is nearly full" in line
        status = look(daemon)
        assert [pause["reason"] for pause in status["policy"]["pauses"]] == [
            "outside_schedule",
            "disk_nearly_full",
        ]
        assert status["policy"]["changes_at"] == status["policy"]["pauses"][0]["until"]
        assert status["policy"]["awake"] is False
        assert command(home, "resume").stdout.startswith("resumed; paused: outside the windows")
        assert command(home, "stop").returncode == 0
        assert daemon.end() == 0


def test_windows_that_are_none_are_no_always_on(home: Path, script: Path) -> None:
    config(home, '[policy]\nwindows = ["whenever", "Mon 25:00-26:00"]\n')
    done = command(home, "start", "--local", "--engine", "scripted", "--script", str(script))
    assert done.returncode == 2
    assert "policy.windows" in done.stderr


class Mailbox(HTTPServer):
    """Takes status reports; refuses those that come before `open` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Letters)
        self.tokens: list[str] = []
        self.news = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/status"

    def wait_for(self, fact: Callable[[list[str]], object]) -> None:
        with self.news:
            assert self.news.wait_for(lambda: fact(self.tokens), SECONDS)


class _Letters(BaseHTTPRequestHandler):
    server: Mailbox

    def do_POST(self) -> None:
        token = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()
        with self.server.news:
            self.server.tokens.append(token)
            self.server.news.notify_all()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_reports_metrics_and_measuring(home: Path, script: Path) -> None:
    port, metrics_port = free_port(), free_port()
    with mailbox() as mail:
        config(home, f'[status]\nurl = "{mail.url}"\n[metrics]\nport = {metrics_port}\n')
        with start(home, script, "--local", "--port", str(port)) as daemon:
            daemon.wait_for("ready: ")
            assert ask(f"http://127.0.0.1:{port}", "a prompt of mine") == "Hello!"
            mail.wait_for(len)
            command(home, "pause")
            keys = {"keys": [json.loads(command(home, "keys", "show", "--json").stdout)["jwk"]]}
            mail.wait_for(lambda tokens: verify_status(tokens[-1], keys)["state"] == "paused")
            command(home, "resume")
            mail.wait_for(lambda tokens: verify_status(tokens[-1], keys)["state"] == "ready")
            reports = [verify_status(token, keys) for token in mail.tokens]
            assert reports[0]["provider_id"] == look(daemon)["process"]["provider_id"]
            assert "mine" not in json.dumps(reports)

            measured = command(home, "measure", "--json")
            assert json.loads(measured.stdout)["decode_tokens_per_s"] > 0, measured.stderr
            status = until(daemon, lambda found: found["today"]["completed"] == 1)
            jsonschema_rs.validator_for(SCHEMA, offline=True).validate(status)
            assert status["measured"] == json.loads(measured.stdout)
            assert status["metrics"] == {"url": f"http://127.0.0.1:{metrics_port}/metrics", "error": None}
            assert status["reports"]["sent"] >= 3
            text = get(status["metrics"]["url"])
            assert f'malibu_provider_jobs_ended_total{{end="completed",model="{MODEL}"}} 1.0' in text
            assert "malibu_provider_ttft_seconds_count 1.0" in text
            assert "malibu_provider_link_routable 1.0" in text
            shown = command(home, "status").stdout.splitlines()
            assert shown[0].startswith("ready: routable, ")
            assert [line.split()[0] for line in shown[2:13]] == [
                layer["id"] for layer in status["health"]["layers"]
            ]


@pytest.mark.slow
def test_the_gateway_at_home_takes_reports_and_a_dead_url_disturbs_nothing(
    home: Path, tmp_path: Path, script: Path
) -> None:
    port = free_port()
    with start(home, script, "--local", "--port", str(port)) as daemon:
        daemon.wait_for("ready: ")
        # The gateway answers 204 only to a report that the registered key has signed.
        status = until(daemon, lambda found: found["reports"]["sent"] >= 1)
        assert status["reports"]["url"].startswith(f"http://127.0.0.1:{port}/v1/providers/prov_")
        assert status["reports"]["last_error"] is None
    config(home, f'[status]\nurl = "http://127.0.0.1:{free_port()}/status"\n')
    with start(home, script, "--local", "--port", str(port)) as daemon:
        daemon.wait_for("ready: ")
        status = until(daemon, lambda found: found["reports"]["failed"] >= 1)
        assert status["health"]["summary"].startswith("ready: ")
        assert (
            "reports        not delivered: nothing listens there (connection refused)"
            in command(home, "status").stdout
        )
        assert ask(f"http://127.0.0.1:{port}") == "Hello!"
    config(home, "[status]\nenabled = false\n")
    with start(home, script, "--local", "--port", str(port)) as daemon:
        daemon.wait_for("ready: ")
        assert look(daemon)["reports"] is None


@pytest.mark.slow
@pytest.mark.asyncio
async def test_measured_without_a_daemon_it_is_told_by_the_next(home: Path, script: Path) -> None:
    config(home, f'[engine]\nkind = "scripted"\nscript = "{script}"\nmodels = ["{MODEL}"]\n')
    done = command(home, "measure")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{MODEL}: ")
    async with FakeGateway() as gateway:
        with Running(home, "start", "--gateway", f"ws://127.0.0.1:{gateway.port}"):
            register = (await gateway.link()).register
            assert register is not None
            told = register.capacity.measured
            assert told is not None
            kept = json.loads((home / "measured.json").read_text())[MODEL]["measured"]
            assert told.model_dump() == kept
    with Running(home, "start", "--local", "--port", str(free_port())) as daemon:
        daemon.wait_for("ready: ")
        measured = look(daemon)["measured"]
        assert measured["model"] == MODEL
        assert "  measured       " in command(home, "status").stdout


@pytest.mark.slow
def test_a_taken_metrics_port_is_told_and_stops_nothing(home: Path, script: Path) -> None:
    port = free_port()
    with mailbox() as taken:
        config(home, f"[metrics]\nport = {taken.server_address[1]}\n")
        with start(home, script, "--local", "--port", str(port)) as daemon:
            daemon.wait_for("ready: ")
            metrics = look(daemon)["metrics"]
            assert metrics["url"] is None
            assert "can't listen on 127.0.0.1:" in metrics["error"]
            assert ask(f"http://127.0.0.1:{port}") == "Hello!"


def test_watching_ends_with_the_daemon(home: Path, script: Path) -> None:
    with start(home, script, "--local", "--port", str(free_port())) as daemon:
        daemon.wait_for("ready: ")
        with Watch(home) as watch:
            assert watch.next()["link"]["routable"] is True
            command(home, "stop")
            *_, last = watch.rest()
            assert last == {"process": {"state": "not running", "pid": None}}
            assert watch.process.wait(SECONDS) == 1


class Watch:
    """`status --watch --json` as it comes."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "status", "--watch", "--json"],
            env=environment(home),
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def rest(self) -> list[Any]:
        assert self.process.stdout is not None
        return [json.loads(line) for line in self.process.stdout]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
