"""Read the JSON object that names a call: `{"name": …, "arguments": {…}}`, in any order of its keys.

    START ─{─▶ KEY ─"…"─▶ COLON ─:─▶ VALUE ─▶ NEXT ─,─▶ KEY … NEXT ─}─▶ done

The arguments stand under the first key of `argument_keys` that is there; absent, they are `{}`; a string that
holds an object is unwrapped (docs/contract.md, "What becomes a call", 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from gateway_protocol.limits import EMITTED_ARGUMENTS_DEPTH
from provider.toolcalls.json_scanner import JsonScanner, decode_string
from provider.toolcalls.marks import Fault

JSON_BLANKS = " \t\n\r"
_CALL_KEYS = frozenset({"name", "type", "id"})


class ObjectText:
    """The JSON text of an arguments object, as it arrives: an object, or a string that holds one.

    `feed` returns how far it read; `take` gives what is certain. `is_object` is `None` until the first
    character that isn't white space.
    """

    def __init__(self) -> None:
        self._scanner = JsonScanner(EMITTED_ARGUMENTS_DEPTH)
        self._quoted = False
        self._unwrapped = ""
        self.is_object: bool | None = None
        self.fault: Fault | None = None

    @property
    def done(self) -> bool:
        return self._scanner.done and self.fault is None

    @property
    def in_string(self) -> bool:
        return self._scanner.in_string

    def feed(self, text: str, position: int = 0) -> int:
        if self.is_object is None:
            while position < len(text) and text[position] in JSON_BLANKS:
                position += 1
            if position == len(text):
                return position
            self.is_object = text[position] in '{"'
            self._quoted = text[position] == '"'
            if not self.is_object:
                self.fault = Fault.ARGUMENTS
                return position
        position = self._scanner.feed(text, position)
        self.fault = self._scanner.fault
        if self._scanner.done and self._quoted:
            self._unwrap()
        return position

    def take(self) -> str:
        if not self._quoted:
            return self._scanner.take()
        text, self._unwrapped = self._unwrapped, ""
        return text

    def _unwrap(self) -> None:
        inner = decode_string(self._scanner.take()[1:-1]).strip(JSON_BLANKS)
        if not inner.startswith("{"):
            self.fault = Fault.ARGUMENTS
            return
        scanner = JsonScanner(EMITTED_ARGUMENTS_DEPTH)
        end = scanner.feed(inner)
        if scanner.done and end == len(inner):
            self._unwrapped = scanner.take()
        else:
            self.fault = scanner.fault or Fault.ARGUMENTS


class _At(Enum):
    START = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()


class Envelope:
    """`feed` until `done` or `fault`; `name` once its string is complete; `take` the arguments' text.

    `begun`: the arguments have begun, so this is a call if its name is one. `take` gives nothing under the
    second choice of key until the object is closed, since the first may still come. `no_other_keys`: a key
    that belongs to no call is a fault before it is sure that this is one, else it is ignored.
    """

    def __init__(self, argument_keys: Sequence[str], *, no_other_keys: bool = False) -> None:
        self._argument_keys = argument_keys
        self._no_other_keys = no_other_keys
        self._at = _At.START
        self._keys: set[str] = set()
        self._key = ""
        self._scanner = JsonScanner(EMITTED_ARGUMENTS_DEPTH)
        self._object: ObjectText | None = None
        self._second: list[str] = []
        self._out: list[str] = []
        self.name: str | None = None
        self.begun = False
        self.done = False
        self.fault: Fault | None = None

    @property
    def in_string(self) -> bool:
        if self._object is not None:
            return self._object.in_string
        return self._at in (_At.KEY, _At.FIRST_KEY, _At.VALUE) and self._scanner.in_string

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str, position: int = 0) -> int:
        """Read on; returns where it stopped: the text's end, or just behind the closing brace."""
        while position < len(text) and not self.done and self.fault is None:
            if self._at is _At.VALUE:
                position = self._value(text, position)
            elif self._at in (_At.KEY, _At.FIRST_KEY):
                position = self._read_key(text, position)
            elif text[position] in JSON_BLANKS:
                position += 1
            else:
                self._punctuation(text[position])
                position += 1
        return position

    def _punctuation(self, char: str) -> None:
        if self._at is _At.START and char == "{":
            self._at = _At.FIRST_KEY
        elif self._at is _At.COLON and char == ":":
            self._at = _At.VALUE
        elif self._at is _At.NEXT and char == ",":
            self._at = _At.KEY
        elif self._at is _At.NEXT and char == "}":
            self._close()
        else:
            self.fault = Fault.ARGUMENTS

    def _close(self) -> None:
        self.done = True
        if not self._keys.intersection(self._argument_keys):
            self._out.append("{}")
        else:
            self._out += self._second

    def _read_key(self, text: str, position: int) -> int:
        if not self._scanner.in_string:
            while position < len(text) and text[position] in JSON_BLANKS:
                position += 1
            if position == len(text):
                return position
            if text[position] == "}" and self._at is _At.FIRST_KEY:
                self._close()
                return position + 1
            if text[position] != '"':
                self.fault = Fault.ARGUMENTS
                return position
        position = self._scanner.feed(text, position)
        self.fault = self._scanner.fault
        if self._scanner.done:
            self._key = decode_string(self._scanner.take()[1:-1])
            self._key_ended()
        return position

    def _key_ended(self) -> None:
        if self._key in self._keys:
            self.fault = Fault.REPEATED
        self._keys.add(self._key)
        self._at = _At.COLON
        self._scanner = JsonScanner(EMITTED_ARGUMENTS_DEPTH)
        if self._key in self._argument_keys:
            self._object = ObjectText()
        elif self._no_other_keys and self._key not in _CALL_KEYS and not (self.name and self.begun):
            self.fault = Fault.ARGUMENTS

    def _value(self, text: str, position: int) -> int:
        if self._object is not None:
            return self._arguments(self._object, text, position)
        position = self._scanner.feed(text, position)
        self.fault = self._scanner.fault
        if self._scanner.done:
            value = self._scanner.take()
            if self._key == "name" and not value.startswith('"'):
                self.fault = Fault.ARGUMENTS
            elif self._key == "name":
                self.name = decode_string(value[1:-1])
            self._value_ended()
        return position

    def _arguments(self, arguments: ObjectText, text: str, position: int) -> int:
        position = arguments.feed(text, position)
        self.fault = arguments.fault
        self.begun = self.begun or bool(arguments.is_object)
        piece = arguments.take()
        if self._key == self._argument_keys[0]:
            self._second.clear()
            self._out.append(piece)
        elif self._argument_keys[0] not in self._keys:
            self._second.append(piece)
        if arguments.done:
            self._object = None
            self._value_ended()
        return position

    def _value_ended(self) -> None:
        self._at = _At.NEXT
        self._scanner = JsonScanner(EMITTED_ARGUMENTS_DEPTH)
