"""`status`: what the running daemon is doing, layer by layer; `--watch` shows it again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from cli.control import LOOK_AGAIN_SECONDS, ask
from cli.setup import paths
from provider.errors import UnknownStateError
from provider.system.lock import is_held

WATCH_SECONDS = 1.0
BETWEEN_SECONDS = 2.0
_NOT_RUNNING = {"process": {"state": "not running", "pid": None}}
# To the upper left, and at the end clear what the last picture left below (ECMA-48: CUP, ED).
_HOME, _CLEAR_BELOW, _CLEAR_ALL = "\x1b[H", "\x1b[J", "\x1b[2J"
_CLEAR_LINE_END = "\x1b[K"


def show_status(*, as_json: bool) -> int:
    """Print the status; the exit code: 0 a daemon runs, 1 none does (3, raised: it doesn't answer)."""
    document = _document()
    if document is None:
        if as_json:
            print(json.dumps(_NOT_RUNNING))
        else:
            print("not running; start it with `malibu-provider start`")
        return 1
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines(document)))
    return 0


def _document() -> dict[str, Any] | None:
    """The daemon's word, `None` where none runs. One that has just begun, or ends just now, has its lock and
    no socket: it is asked again for a moment."""
    until = time.monotonic() + BETWEEN_SECONDS
    while is_held(paths().lock_file)[0]:
        try:
            return ask("GET", "status")
        except UnknownStateError:
            if time.monotonic() >= until:
                raise
        time.sleep(LOOK_AGAIN_SECONDS)
    return None


def watch_status(*, as_json: bool) -> int:
    """Show it every second until Ctrl-C or until no daemon runs; with JSON one document a line."""
    terminal = sys.stdout.isatty() and not as_json
    if terminal:
        print(_CLEAR_ALL, end="")
    while True:
        document = _document()
        if document is None:
            print("not running" if not as_json else json.dumps(_NOT_RUNNING))
            return 1
        if as_json:
            print(json.dumps(document, ensure_ascii=False), flush=True)
        elif terminal:
            picture = "".join(f"{line}{_CLEAR_LINE_END}\n" for line in lines(document))
            print(f"{_HOME}{picture}{_CLEAR_BELOW}", end="", flush=True)
        else:
            print("\n".join(lines(document)), end="\n\n", flush=True)
        time.sleep(WATCH_SECONDS)


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The summary, then each layer with its state and reason, then what else an owner asks for."""
    health, process = document["health"], document["process"]
    yield health["summary"]
    yield ""
    width = max(len(layer["id"]) for layer in health["layers"])
    for layer in health["layers"]:
        yield f"  {layer['id']:<{width}}  {layer['state']:<8}  {layer['reason']}"
    yield ""
    if process["local_url"]:
        yield f"  local gateway  {process['local_url']}/v1"
    if process["provider_id"]:
        yield f"  provider       {process['provider_id']}"
    measured = document["measured"]
    if measured is not None:
        speeds = (
            f"{measured['decode_tokens_per_s']:.1f} decode, {measured['prefill_tokens_per_s']:.0f} prefill"
        )
        yield f"  measured       {speeds} tokens/s ({measured['model']})"
    reports = document["reports"]
    if reports is not None and reports["last_error"]:
        yield f"  reports        not delivered: {reports['last_error']}"
    if document["metrics"]["url"] or document["metrics"]["error"]:
        yield f"  metrics        {document['metrics']['url'] or document['metrics']['error']}"
    if process["config_remark"]:
        yield f"  configuration  {process['config_remark']}"
    yield f"  version        {process['version']}, up {uptime(process['uptime_s'])}, {process['config_file']}"


def uptime(seconds: float) -> str:
    """As "3 d 4 h", in the two largest units."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, length in units:
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
