"""The end of `scripts/quickstart`: start the daemon, have one streamed chat, show what came and how fast."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Any

from cli.trial import (
    WEATHER_QUESTION,
    Ready,
    TrialFailed,
    end_daemon,
    forced_call,
    start_daemon,
    stream_chat,
    wait_until_ready,
)
from provider.engine.launch import find_openblas

QUESTION = "Tell me in three sentences why the sea is salty."


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/quickstart")
    parser.add_argument("--once", action="store_true", help="end after the answers; exit 0 only if they came")
    parser.add_argument("--port", help="the local gateway's port (8080)")
    parser.add_argument("--model", help="an ID, ./FOLDER or ID=FOLDER (the demo model)")
    options = parser.parse_args()
    tell_of_openblas()
    daemon = start_daemon(options.port, options.model)
    try:
        ready = wait_until_ready(daemon)
        chat(ready)
        if ready.can_force:
            print(f"\nYou: {WEATHER_QUESTION} (get_weather is required)\n{ready.model}: ", end="", flush=True)
            print(forced_call(ready))
        if options.once:
            return 0
        print(
            f"\nServing at {ready.url}/v1 until Ctrl-C, for any OpenAI-compatible program.", file=sys.stderr
        )
        return daemon.wait()
    except KeyboardInterrupt:
        return 0
    except TrialFailed as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    finally:
        end_daemon(daemon)


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


def chat(ready: Ready) -> None:
    """Ask the question, show answer, time to first token and tokens/s. Raises `TrialFailed` without text."""
    request = {
        "messages": [{"role": "user", "content": QUESTION}],
        "stream_options": {"include_usage": True},
    }
    print(f"\nYou: {QUESTION}\n{ready.model}: ", end="", flush=True)
    started, first, text = time.monotonic(), None, ""
    usage: dict[str, Any] = {}
    for chunk in stream_chat(ready, request):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and first is None:
                first = time.monotonic()
            text += piece
            print(piece, end="", flush=True)
    print()
    if first is None or not text.strip():
        raise TrialFailed("no text came back")
    tokens, seconds = usage.get("completion_tokens", 0), time.monotonic() - first
    speed = f", {(tokens - 1) / seconds:.1f} tokens/s" if tokens > 1 and seconds > 0 else ""
    print(f"({tokens} tokens, first after {first - started:.2f} s{speed})")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
