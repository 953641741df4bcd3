"""A daemon of one's own for a trial: start it, wait until it serves, talk to it by the API, end it.

Behind `scripts/quickstart` and `self-test`. It uses nothing but what every other program uses too.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cli.control import ask
from provider.errors import UnknownStateError

# A large model is fetched and loaded in this time too; its progress is shown meanwhile.
READY_SECONDS = 3600.0
LOOK_AGAIN_SECONDS = 0.2
ANSWER_SECONDS = 600.0
MAX_TOKENS = 120

WEATHER_QUESTION = "What is the weather in Paris?"
WEATHER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {
                # Bounded, so that a model that babbles comes to an end too.
                "city": {"type": "string", "maxLength": 40},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class TrialFailed(Exception):
    """It didn't start, or an answer wasn't what it had to be; the text says which."""


@dataclass(frozen=True, slots=True)
class Ready:
    """`url`: the gateway's origin. `can_force`: the decoder can be held to a call."""

    url: str
    model: str
    can_force: bool


def start_daemon(port: str | None, model: str | None) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("malibu-provider")), "start", "--local"]
    command += ["--port", port] if port else []
    command += ["--model", model] if model else []
    # Its own session: Ctrl-C reaches this program, which then ends the daemon once.
    return subprocess.Popen(command, start_new_session=True)


def wait_until_ready(daemon: subprocess.Popen[bytes]) -> Ready:
    """Raises `TrialFailed` when the daemon ends first; it has then said why on stderr."""
    end_at = time.monotonic() + READY_SECONDS
    while time.monotonic() < end_at:
        if daemon.poll() is not None:
            raise TrialFailed(f"the daemon ended with {daemon.returncode}")
        ready = _ready(daemon.pid)
        if ready is not None:
            return ready
        time.sleep(LOOK_AGAIN_SECONDS)
    raise TrialFailed(f"nothing is served after {READY_SECONDS / 60:.0f} minutes")


def _ready(pid: int) -> Ready | None:
    try:
        status = ask("GET", "status")
    except UnknownStateError:
        return None
    process = status["process"]
    if process["pid"] != pid or not process["local_url"]:
        return None
    served = get(process["local_url"], "/v1/models")["data"]
    if not served:
        return None
    model = served[0]["id"]
    forced = any(each["id"] == model and each["can_force"] for each in status["models"])
    return Ready(process["local_url"], model, forced)


def end_daemon(daemon: subprocess.Popen[bytes]) -> None:
    """Let it drain; it leaves nothing behind."""
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_SECONDS)


def get(url: str, path: str) -> dict[str, Any]:
    connection = _connect(url)
    try:
        connection.request("GET", path)
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document
    finally:
        connection.close()


def stream_chat(ready: Ready, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed completion. Raises `TrialFailed` with the error's words."""
    connection = _connect(ready.url)
    try:
        body = json.dumps({"model": ready.model, "max_tokens": MAX_TOKENS, **request, "stream": True})
        headers = {"Content-Type": "application/json", "Authorization": "Bearer local"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise TrialFailed(json.loads(response.read())["error"]["message"])
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                chunk = json.loads(line[len(b"data: ") :])
                if "error" in chunk:
                    raise TrialFailed(chunk["error"]["message"])
                yield chunk
    finally:
        connection.close()


def forced_call(ready: Ready) -> str:
    """Ask for a call that the decoder is held to: valid by construction, however small the model.

    Returns it as `name(arguments)`. Raises `TrialFailed` for one that doesn't fit its schema.
    """
    request = {
        "messages": [{"role": "user", "content": WEATHER_QUESTION}],
        "tools": [WEATHER],
        "tool_choice": "required",
    }
    name, arguments = "", ""
    for chunk in stream_chat(ready, request):
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or []:
                name += call["function"].get("name", "")
                arguments += call["function"]["arguments"]
    shown = f"{name}({arguments})"
    try:
        values = json.loads(arguments)
        fits = isinstance(values["city"], str) and values["unit"] in ("celsius", "fahrenheit")
    except (ValueError, KeyError, TypeError):
        fits = False
    if name != "get_weather" or not fits:
        raise TrialFailed(f"not the call that was required: {shown}")
    return shown
