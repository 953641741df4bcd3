"""The end of `scripts/quickstart`: start the daemon, have one streamed chat, show what came and how fast.

Uses nothing but the OpenAI-compatible API that every other program uses too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cli.control import ask
from provider.engine.launch import find_openblas
from provider.errors import UnknownStateError

QUESTION = "Tell me in three sentences why the sea is salty."
MAX_TOKENS = 120
WEATHER_QUESTION = "What is the weather in Paris?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
# A large model is fetched and loaded in this time too; its progress is shown meanwhile.
READY_SECONDS = 3600.0
LOOK_AGAIN_SECONDS = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/quickstart")
    parser.add_argument(
        "--once", action="store_true", help="end after the answer; exit 0 only if text came back"
    )
    parser.add_argument("--port", help="the local gateway's port (8080)")
    parser.add_argument(
        "--model", help="catalogue or Hugging Face ID, ./FOLDER or ID=FOLDER (the demo model)"
    )
    options = parser.parse_args()
    tell_of_openblas()
    daemon = start_daemon(options.port, options.model)
    try:
        url, model, can_force = wait_until_ready(daemon)
        answered = chat(url, model) and (not can_force or forced_call(url, model))
        if options.once or not answered:
            return 0 if answered else 1
        print(
            f"\nServing at {url}/v1 until Ctrl-C; any OpenAI-compatible program can use it.", file=sys.stderr
        )
        return daemon.wait()
    except KeyboardInterrupt:
        return 0
    except StartFailed:
        return 1
    finally:
        end(daemon)


class StartFailed(Exception):
    """The daemon ended before it was ready; it has said why."""


def tell_of_openblas() -> None:
    if not sys.platform.startswith("linux"):
        return
    found = find_openblas()
    if found is not None:
        print(f"OpenBLAS: {found}", file=sys.stderr)
    else:
        print(
            "OpenBLAS isn't here; with it the model runs 50 to 80 times faster on this CPU:"
            " apt-get install libopenblas0-pthread",
            file=sys.stderr,
        )


def start_daemon(port: str | None, model: str | None) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("malibu-provider")), "start", "--local"]
    command += ["--port", port] if port else []
    command += ["--model", model] if model else []
    # Its own process group: Ctrl-C reaches this program, which then ends the daemon once.
    return subprocess.Popen(command, start_new_session=True)


def wait_until_ready(daemon: subprocess.Popen[bytes]) -> tuple[str, str, bool]:
    """The gateway's origin, the model that is ready, whether a call can be forced. Raises `StartFailed`."""
    end_at = time.monotonic() + READY_SECONDS
    while time.monotonic() < end_at:
        if daemon.poll() is not None:
            raise StartFailed
        try:
            status = ask("GET", "status")
        except UnknownStateError:
            status = {}
        process = status.get("process", {})
        if process.get("pid") == daemon.pid and process.get("local_url"):
            models = get(process["local_url"], "/v1/models")["data"]
            if models:
                return process["local_url"], models[0]["id"], status["models"][0]["can_force"]
        time.sleep(LOOK_AGAIN_SECONDS)
    raise StartFailed


def connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)


def get(url: str, path: str) -> dict[str, Any]:
    connection = connect(url)
    try:
        connection.request("GET", path)
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document
    finally:
        connection.close()


def events(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed completion."""
    connection = connect(url)
    try:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer local"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            yield json.loads(response.read())
            return
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[len(b"data: ") :])
    finally:
        connection.close()


def chat(url: str, model: str) -> bool:
    """Ask the question, show answer, time to first token and tokens/s. Whether real text came back."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    print(f"\nYou: {QUESTION}\n{model}: ", end="", flush=True)
    started, first, text = time.monotonic(), None, ""
    usage: dict[str, Any] = {}
    for chunk in events(url, body):
        if "error" in chunk:
            print(f"\nthe request failed: {chunk['error']['message']}", file=sys.stderr)
            return False
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and first is None:
                first = time.monotonic()
            text += piece
            print(piece, end="", flush=True)
    print()
    if first is None or not text.strip():
        print("no text came back", file=sys.stderr)
        return False
    tokens, seconds = usage.get("completion_tokens", 0), time.monotonic() - first
    speed = f", {(tokens - 1) / seconds:.1f} tokens/s" if tokens > 1 and seconds > 0 else ""
    print(f"({tokens} tokens, first after {first - started:.2f} s{speed})")
    return True


def forced_call(url: str, model: str) -> bool:
    """Ask for a tool call that the decoder is held to: valid by construction, however small the model."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": WEATHER_QUESTION}],
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    print(f"\nYou: {WEATHER_QUESTION} (get_weather is required)\n{model}: ", end="", flush=True)
    name, arguments = "", ""
    for chunk in events(url, body):
        if "error" in chunk:
            print(f"\nthe request failed: {chunk['error']['message']}", file=sys.stderr)
            return False
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                name += call["function"].get("name", "")
                arguments += call["function"]["arguments"]
    print(f"{name}({arguments})")
    try:
        return name == "get_weather" and set(json.loads(arguments)) == {"city", "unit"}
    except ValueError:
        print("that is no valid call", file=sys.stderr)
        return False


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Let it drain; it leaves nothing behind."""
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
