"""What may leave this machine of a log or a document: pure, but for reading the files that hold secrets.

Logs hold no prompt, answer or secret by themselves (`provider.logs`). But the message of an exception, and
what a library says, is anyone's: of those only the type, the place and the logger's name are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from provider.local_gateway.api_keys import KEY_PREFIX
from provider.logs import FORBIDDEN_KEYS

_OUT = "(secret)"
_LEFT_OUT = "(left out)"
# Shorter words would blot out half of a text, and are no secrets.
_SHORTEST = 8

# Secrets by their form: bearer tokens, buyers' API keys, PEM files.
_FORMS = re.compile(
    rf"(?i:bearer)\s+[^\s\"'\\,]+|\b{KEY_PREFIX}[\w-]{{16,}}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)",
    re.DOTALL,
)

# The event that hands on a line which the engine's process has printed.
_ENGINE_LINE = "engine_child_stderr"
# How an engine ended, with the last line it printed (`provider.engine.child_link`).
_LAST_WORDS = re.compile(r"(the engine's process [^:]*: )(.*)", re.DOTALL)

# Lines without a message in them: of tracebacks, the faulthandler's, and what the system says of a crash.
_BARE = re.compile(
    r"\s*File \"[^\"]+\", line \d+(, in \S+| in \S+)|Traceback \(most recent call last\):|\s*[\^~]+\s*"
    r"|(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):|Fatal Python error: [\w ]+"
    r"|libc\+\+abi: terminating due to [\w ]+|\[METAL\] Command buffer execution failed: [\w ]+"
)
_EXCEPTION = re.compile(r"\s*([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Group))(: .*|$)")
# What the daemon itself writes for a console: its time, its level.
_CONSOLE = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z? \[\w+\s*\] ")
_LIBRARY = re.compile(r"([A-Za-z_][\w.]*): ")


class Redaction:
    """`secrets`: texts that must not be in anything."""

    def __init__(self, secrets: Iterable[str]) -> None:
        words = {word.strip() for secret in secrets for word in secret.splitlines()}
        self._secrets = sorted((word for word in words if len(word) >= _SHORTEST), key=len, reverse=True)

    def document(self, value: Any) -> Any:
        """A JSON value without any secret."""
        if isinstance(value, Mapping):
            return {key: self.document(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(each) for each in value]
        return self._words(value) if isinstance(value, str) else value

    def log(self, text: str) -> str:
        """A log or a crash's traces, line by line, without secrets and without anyone's messages."""
        return "".join(f"{self._line(line)}\n" for line in text.splitlines())

    def _line(self, line: str) -> str:
        try:
            event = json.loads(line)
        except ValueError:
            return self._words(_plain(line))
        if not isinstance(event, dict):
            return _LEFT_OUT
        kept = {key: value for key, value in event.items() if key not in FORBIDDEN_KEYS}
        printed = {"exception", "line"} if event.get("event") == _ENGINE_LINE else {"exception"}
        for key in printed & kept.keys():
            kept[key] = "\n".join(_plain(each) for each in str(kept[key]).splitlines())
        return json.dumps(self.document(kept), ensure_ascii=False)

    def _words(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _OUT)
        text = _LAST_WORDS.sub(lambda found: found[1] + _plain(found[2]), text)
        return _FORMS.sub(_OUT, text)


def _plain(line: str) -> str:
    if not line.strip() or _BARE.fullmatch(line) or _CONSOLE.match(line):
        return line
    if raised := _EXCEPTION.fullmatch(line):
        return raised[1]
    library = _LIBRARY.match(line)
    return f"{library[0]}{_LEFT_OUT}" if library else _LEFT_OUT


def secrets_in(files: Iterable[Path]) -> Iterator[str]:
    """What the files hold that a configuration names for tokens and keys.

    A name without a folder that leads nowhere may be the token itself, typed where its file belongs.
    """
    for file in files:
        try:
            yield file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            if len(file.parts) == 1:
                yield file.name
