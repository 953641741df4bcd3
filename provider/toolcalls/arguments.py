"""Build the arguments object of a format that isn't JSON: text that is only ever extended."""

from __future__ import annotations

import json
from collections.abc import Set

from gateway_protocol.limits import EMITTED_ARGUMENTS_DEPTH

# Of the levels that arguments may have, the object itself is the first.
VALUE_DEPTH = EMITTED_ARGUMENTS_DEPTH - 1


class ArgumentsBuilder:
    """`take` what was built since the last call. Joined, it is one JSON object once `close` was called."""

    def __init__(self) -> None:
        self._out = ["{"]
        self._names: set[str] = set()
        self._in_string = False

    @property
    def names(self) -> Set[str]:
        """The members so far; it grows with them."""
        return self._names

    def has(self, name: str) -> bool:
        return name in self._names

    def member(self, name: str) -> None:
        """Begin a member, which isn't there yet; its value follows."""
        separator = ", " if self._names else ""
        self._names.add(name)
        self._out.append(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")

    def value(self, json_text: str) -> None:
        """The whole value of the member begun last."""
        self._out.append(json_text)

    def text(self, piece: str) -> None:
        """The next characters of a string value."""
        if not self._in_string:
            self._in_string = True
            self._out.append('"')
        self._out.append(json.dumps(piece, ensure_ascii=False)[1:-1])

    def end_text(self) -> None:
        """The string value is over; an empty one needs no `text` before."""
        self.text("")
        self._in_string = False
        self._out.append('"')

    def close(self) -> None:
        self._out.append("}")

    def take(self) -> str:
        built = "".join(self._out)
        self._out.clear()
        return built
