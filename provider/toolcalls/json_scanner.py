r"""Read one JSON value as it arrives, character by character if need be, and pass its text on.

The text is passed on as the model wrote it, with one repair: control characters inside strings are escaped
(docs/contract.md, "What becomes a call", 3). It is passed on as soon as that is safe: never half an escape,
never the first half of a surrogate pair. RFC 8259 and no more: no `NaN`, no trailing comma; and no object
with the same key twice, nor deeper nesting than asked for (rule 5).

    VALUE ─{─▶ FIRST_KEY ─"─▶ COLON ─:─▶ VALUE … NEXT ─,─▶ KEY     ─}─▶ NEXT or done
          ─[─▶ FIRST_ITEM … NEXT ─,─▶ VALUE                        ─]─▶ NEXT or done
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from provider.toolcalls.marks import Fault

_BLANKS = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ATOM = re.compile(r"[^\s,\]}:\"\[{]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})")
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F]")
_LITERALS = frozenset({"true", "false", "null"})
_SHORT_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class _At(Enum):
    VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()
    NEXT = auto()


class JsonScanner:
    """One value. `feed` until `done` or `fault`; `take` what may be passed on.

    `depth`: how many levels the value may have, itself the first when it is an object or array. White space
    before the value is consumed and not passed on.
    """

    def __init__(self, depth: int) -> None:
        self.done = False
        self.fault: Fault | None = None
        self._depth = depth
        self._at = _At.VALUE
        self._open: list[set[str] | None] = []  # keys so far of each open object, None for an array
        self._in_string = False
        self._key: list[str] | None = None  # the text of the key being read
        self._held = ""  # an escape that isn't complete
        self._atom: list[str] | None = None  # a number or literal that may go on
        self._out: list[str] = []

    @property
    def in_string(self) -> bool:
        return self._in_string

    def take(self) -> str:
        """The text read since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str, position: int = 0) -> int:
        """Read `text` from `position` on; returns where it stopped: its end, or where the value ended."""
        while position < len(text) and not self.done and self.fault is None:
            if self._in_string:
                position = self._string(text, position)
            elif self._atom is not None:
                position = self._continue_atom(text, position)
            else:
                position = self._structure(text, position)
        return position

    def finish(self) -> None:
        """Nothing follows: a number or literal at the outermost level ends here."""
        if self._atom is not None and not self.done:
            self._end_atom()
        if not self.done and self.fault is None:
            self.fault = Fault.UNFINISHED

    # --- between strings -----------------------------------------------------------------------

    def _structure(self, text: str, start: int) -> int:
        match = _BLANKS.match(text, start)
        position = start if match is None else match.end()
        if position > start and self._open:
            self._out.append(text[start:position])
        if position == len(text):
            return position
        char = text[position]
        if self._at is _At.NEXT:
            return self._next(char, position)
        if self._at is _At.COLON and char == ":":
            return self._expect(char, _At.VALUE, position)
        if self._at is _At.COLON:
            return self._fail(Fault.ARGUMENTS, position)
        if char == '"':
            self._begin_string()
            return position + 1
        if self._at in (_At.FIRST_KEY, _At.KEY):
            if char == "}" and self._at is _At.FIRST_KEY:
                return self._close(char, position)
            return self._fail(Fault.ARGUMENTS, position)
        if char == "]" and self._at is _At.FIRST_ITEM:
            return self._close(char, position)
        return self._value(char, position)

    def _value(self, char: str, position: int) -> int:
        if char in "{[":
            if len(self._open) >= self._depth:
                return self._fail(Fault.DEPTH, position)
            self._open.append(set() if char == "{" else None)
            return self._expect(char, _At.FIRST_KEY if char == "{" else _At.FIRST_ITEM, position)
        if char not in "-0123456789tfn":
            return self._fail(Fault.ARGUMENTS, position)
        self._atom = []
        return position

    def _next(self, char: str, position: int) -> int:
        in_object = self._open[-1] is not None
        if char == ",":
            return self._expect(char, _At.KEY if in_object else _At.VALUE, position)
        if char == ("}" if in_object else "]"):
            return self._close(char, position)
        return self._fail(Fault.ARGUMENTS, position)

    def _close(self, char: str, position: int) -> int:
        self._out.append(char)
        self._open.pop()
        self._value_ended()
        return position + 1

    def _value_ended(self) -> None:
        self._at = _At.NEXT
        self.done = not self._open

    def _expect(self, char: str, then: _At, position: int) -> int:
        self._out.append(char)
        self._at = then
        return position + 1

    def _fail(self, fault: Fault, position: int) -> int:
        self.fault = fault
        return position

    # --- numbers and literals ------------------------------------------------------------------

    def _continue_atom(self, text: str, position: int) -> int:
        match = _ATOM.match(text, position)
        end = position if match is None else match.end()
        piece = text[position:end]
        assert self._atom is not None
        self._atom.append(piece)
        self._out.append(piece)
        if end < len(text):
            self._end_atom()
        return end

    def _end_atom(self) -> None:
        word = "".join(self._atom or ())
        self._atom = None
        if word in _LITERALS or _NUMBER.fullmatch(word):
            self._value_ended()
        else:
            self.fault = Fault.ARGUMENTS

    # --- strings -------------------------------------------------------------------------------

    def _begin_string(self) -> None:
        self._in_string = True
        self._key = [] if self._at in (_At.FIRST_KEY, _At.KEY) else None
        self._out.append('"')

    def _string(self, text: str, position: int) -> int:
        if self._held:
            return position + self._after_held(text[position:])
        match = _PLAIN.match(text, position)
        end = position if match is None else match.end()
        if end > position:
            self._pass(text[position:end])
        if end == len(text):
            return end
        char = text[end]
        if char == '"':
            self._end_string()
            return end + 1
        if char == "\\":
            return self._escape(text, end)
        self._pass(_SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}")
        return end + 1

    def _after_held(self, text: str) -> int:
        """How much of `text` was read once all that was held has been: more than one escape may have been."""
        held, self._held = self._held, ""
        joined, position = held + text, 0
        while position < len(held) and self._in_string and self.fault is None:
            position = self._string(joined, position)
        # A fault may lie in what was held, which is not given back.
        return max(0, position - len(held))

    def _escape(self, text: str, position: int) -> int:
        match = _ESCAPE.match(text, position)
        if match is None:
            if _ESCAPE_BEGUN.fullmatch(text, position):
                self._held = text[position:]
                return len(text)
            return self._fail(Fault.ARGUMENTS, position)
        end = match.end()
        if _HIGH_SURROGATE.match(text, position):
            low = _ESCAPE.match(text, end)
            if low is None and (end == len(text) or _ESCAPE_BEGUN.fullmatch(text, end)):
                self._held = text[position:]
                return len(text)
            if low is not None and _LOW_SURROGATE.match(text, end):
                end = low.end()
        self._pass(text[position:end])
        return end

    def _pass(self, piece: str) -> None:
        self._out.append(piece)
        if self._key is not None:
            self._key.append(piece)

    def _end_string(self) -> None:
        self._in_string = False
        self._out.append('"')
        if self._key is None:
            self._value_ended()
            return
        key = decode_string("".join(self._key))
        self._key = None
        keys = self._open[-1]
        assert keys is not None
        if key in keys:
            self.fault = Fault.REPEATED
        keys.add(key)
        self._at = _At.COLON


def decode_string(inner: str) -> str:
    """The string that valid JSON text between two quotes means."""
    if "\\" not in inner:
        return inner
    decoded: str = json.loads(f'"{inner}"')
    return decoded
