"""What a page tells its reader to type, held against the commands there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from cli.main import app


def root() -> Any:
    return typer.main.get_command(app)


def all_flags() -> set[str]:
    def below(command: Any) -> set[str]:
        own = {name for each in getattr(command, "params", []) for name in each.opts}
        return own.union(*(below(inner) for inner in getattr(command, "commands", {}).values()))

    return below(root())


def spans(page: str) -> Iterator[str]:
    """The code spans of a page, without the command's own name; one may run over a line's end."""
    for span in re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", page)):
        yield " ".join(span.split()).removeprefix("malibu-provider ")


def commands(page: str) -> set[tuple[str, ...]]:
    """The leading words of each span that begins with a command."""
    found = {re.match(r"[a-z-]*(?: [a-z][a-z-]*(?= |$))*", span) for span in spans(page)}
    words = {tuple(match[0].split()) for match in found if match is not None and match[0]}
    return {each for each in words if each[0] in root().commands}


def check_command(words: tuple[str, ...]) -> None:
    """Raise `AssertionError` unless the words lead to a command; further words are its arguments."""
    command = root()
    for word in words:
        below = getattr(command, "commands", None)
        if below is None:
            return
        assert word in below, words
        command = below[word]
