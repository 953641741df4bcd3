"""`start`, `gateway`, `status` and `stop` as processes, with the scripted engine."""

from __future__ import annotations

import concurrent.futures
import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.cli.processes import Running, command, free_port

MODEL = "mlx-community/Qwen3-8B-4bit"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.jsonl"
    slow = {"match": "slowly", "text": "one two three four", "chars_per_token": 2, "ms_per_token": 400}
    file.write_text(json.dumps(slow) + "\n" + json.dumps({"text": "Hello!"}) + "\n")
    return file


def start(home: Path, script: Path, *more: str) -> Running:
    return Running(home, "start", "--engine", "scripted", "--script", str(script), "--model", MODEL, *more)


def answer(url: str, content: str) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
        return text


def test_from_start_to_stop(home: Path, script: Path) -> None:
    port = free_port()
    with start(home, script, "--local", "--port", str(port)) as daemon:
        url = f"http://127.0.0.1:{port}"
        assert daemon.wait_for("ready: ") == f"ready: {url}/v1 (model {MODEL})"
        assert daemon.wait_for("try: curl ")
        assert answer(url, "Hi") == "Hello!"

        status = daemon.status()
        assert status["process"]["pid"] == daemon.process.pid
        assert status["process"]["state"] == "serving"
        assert status["link"]["routable"] is True
        assert (home / "control.sock").stat().st_mode & 0o777 == 0o600

        doctor = command(home, "doctor", "--json")
        assert doctor.returncode == 0, doctor.stdout
        assert json.loads(doctor.stdout)["verdict"] == "ok"

        second = command(home, "start", "--local", "--port", str(free_port()))
        assert second.returncode == 1
        assert f"already running (PID {daemon.process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1

        stopped = command(home, "stop")
        assert stopped.returncode == 0
        assert stopped.stdout.endswith("stopped\n")
        assert daemon.end() == 0
    assert command(home, "status").returncode == 1
    assert not (home / "control.sock").exists()


def test_a_signal_lets_the_running_answer_finish(home: Path, script: Path) -> None:
    port = free_port()
    with (
        start(home, script, "--local", "--port", str(port)) as daemon,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        daemon.wait_for("ready: ")
        running = pool.submit(answer, f"http://127.0.0.1:{port}", "slowly please")
        while daemon.status()["jobs"]["running"] != 1:
            assert daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGINT)
        assert running.result() == "one two three four"
        assert daemon.end() == 0


def test_a_killed_daemon_leaves_nothing_in_the_way_and_comes_back_as_itself(home: Path, script: Path) -> None:
    identities = []
    for end in (signal.SIGKILL, signal.SIGTERM):
        with start(home, script, "--local", "--port", str(free_port())) as daemon:
            daemon.wait_for("ready: ")
            identities.append(daemon.status()["process"]["provider_id"])
            daemon.process.send_signal(end)
            assert daemon.end() == (-9 if end is signal.SIGKILL else 0)
    assert identities[0] == identities[1]


def test_a_daemon_whose_lock_names_no_pid_is_stopped_all_the_same(home: Path, script: Path) -> None:
    with start(home, script, "--local", "--port", str(free_port())) as daemon:
        daemon.wait_for("ready: ")
        (home / "daemon.lock").write_text("")
        done = command(home, "stop")
        assert done.stdout.splitlines()[-1] == "stopped", done
        assert daemon.end() == 0


def test_gateway_and_daemon_as_two_processes(home: Path, tmp_path: Path, script: Path) -> None:
    port = free_port()
    with Running(tmp_path / "other", "gateway", "--port", str(port)) as gateway:
        gateway.wait_for("ready: ")
        with start(home, script, "--gateway", f"ws://127.0.0.1:{port}") as daemon:
            daemon.wait_for("ready: ")
            assert answer(f"http://127.0.0.1:{port}", "Hi") == "Hello!"
            assert command(home, "stop").returncode == 0
            assert daemon.end() == 0
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.end() == 0


def failing(home: Path) -> dict[str, str]:
    """What `doctor` finds wrong, by ID."""
    done = command(home, "doctor", "--json")
    assert done.returncode == 1, done.stdout
    return {
        check["id"]: check["detail"]
        for check in json.loads(done.stdout)["checks"]
        if check["verdict"] == "failing"
    }


@pytest.mark.slow
def test_doctor_on_a_daemon_whose_gateway_is_gone_or_gives_no_jobs(
    home: Path, tmp_path: Path, script: Path
) -> None:
    port = free_port()
    other = tmp_path / "other"
    with start(home, script, "--gateway", f"ws://127.0.0.1:{port}") as daemon:
        while not (daemon.status().get("link") or {}).get("last_error"):
            assert daemon.process.poll() is None
        found = failing(home)
        assert {"gateway", "registered", "routable"} <= found.keys()
        assert "refused" in found["gateway"]
    # What listens on the port of a local gateway is no matter to a daemon that has none.
    (home / "config.toml").write_text(f"[local_gateway]\nport = {port}\n")
    with (
        Running(other, "gateway", "--port", str(port)) as gateway,
        start(home, script, "--gateway", f"ws://127.0.0.1:{port}") as daemon,
    ):
        gateway.wait_for("ready: ")
        daemon.wait_for("ready: ")
        assert command(home, "pause").returncode == 0
        while daemon.status()["link"]["routable"]:
            assert daemon.process.poll() is None
        assert failing(home) == {"routable": "no jobs: paused_by_policy"}


@pytest.mark.parametrize("arguments", [("start", "--local"), ("gateway",)])
def test_a_port_in_use_is_one_line_and_exit_1(home: Path, script: Path, arguments: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        more = ("--engine", "scripted", "--script", str(script)) if arguments[0] == "start" else ()
        done = command(home, *arguments, "--port", port, *more)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1]
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_model_folders_are_one_line_and_exit_1(home: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "config.json").write_text('{"max_position_embeddings": 128}')
    (cut / "tokenizer.json").write_text("{}")
    (cut / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    for folder, words in ((empty, "config.json"), (cut, "is damaged"), (tmp_path / "none", "no folder")):
        done = command(home, "start", "--local", "--port", str(free_port()), "--model", str(folder))
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_broken_script_is_one_line_before_anything_is_started(home: Path, script: Path) -> None:
    script.write_text("not JSON\n")
    arguments = ("--port", str(free_port()), "--engine", "scripted", "--script", str(script))
    done = command(home, "start", "--local", *arguments)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert f"{script}:1: is not JSON" in line


def test_a_service_waits_for_its_configuration_to_be_mended(home: Path, script: Path) -> None:
    home.mkdir(mode=0o700)
    config = home / "config.toml"
    port = free_port()
    config.write_text("[engine]\nslotz = 1\n")
    with Running(home, "start", "--service", "--local") as daemon:
        while (status := command(home, "status", "--json")).returncode != 0 or (
            json.loads(status.stdout)["process"]["state"] != "idle"
        ):
            assert daemon.process.poll() is None
        assert "engine.slotz: unknown key" in json.loads(status.stdout)["process"]["reason"]
        found = failing(home)
        assert "engine.slotz: unknown key" in found["config"]
        assert found["process"].startswith("idle: engine.slotz: unknown key")
        config.write_text(
            f'[engine]\nkind = "scripted"\nscript = "{script}"\n[local_gateway]\nport = {port}\n'
        )
        daemon.wait_for_log("ready: ")
        assert command(home, "stop").returncode == 0
        assert daemon.end() == 0
        # What launchd and systemd keep of it is for crashes.
        assert daemon.lines == []
    log = [json.loads(line) for line in (home / "logs" / "daemon.log").read_text().splitlines()]
    events = [line["event"] for line in log]
    assert events.index("idle") < events.index("provider_registered")


@pytest.mark.slow
def test_a_service_that_keeps_crashing_rests_and_says_so(home: Path, script: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        f'[engine]\nkind = "scripted"\nscript = "{script}"\n[local_gateway]\nport = {free_port()}\n'
    )
    starts = home / "starts.json"
    with Running(home, "start", "--service", "--local") as daemon:
        daemon.wait_for_log("ready: ")
        daemon.process.send_signal(signal.SIGKILL)
        daemon.end()
    (crashed,) = json.loads(starts.read_text())
    # Four more like it, as the service manager would have brought about by now.
    starts.write_text(json.dumps([crashed] * 5))
    with Running(home, "start", "--service", "--local") as daemon:
        while not (status := command(home, "status", "--json")).stdout.strip() or (
            json.loads(status.stdout)["process"]["state"] != "idle"
        ):
            assert daemon.process.poll() is None
        reason = json.loads(status.stdout)["process"]["reason"]
        assert reason.startswith("crashed 5 times in 10 minutes; rests until ")
        assert command(home, "stop").returncode == 0
        assert daemon.end() == 0
    assert not starts.exists()
    (home / "logs" / "daemon.log").unlink()
    with Running(home, "start", "--service", "--local") as daemon:
        daemon.wait_for_log("ready: ")
