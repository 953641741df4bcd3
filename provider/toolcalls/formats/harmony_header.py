"""The header of a Harmony message: role, channel, recipient and content type, in whatever order they come."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_RECIPIENT: Final = re.compile(r"to=(\S+)")
_FUNCTIONS: Final = "functions."
_NOBODY: Final = frozenset({"assistant", "user", "all"})
_ROLE: Final = "assistant"


class MessageKind(Enum):
    """What a message's body is."""

    CONTENT = auto()
    REASONING = auto()
    HIDDEN = auto()
    CALL = auto()


class Header:
    """A header as it comes. `prompted`: the role stands in the prompt, or goes without saying."""

    def __init__(self, *, prompted: bool) -> None:
        self._prompted = prompted
        self._role: list[str] = []
        self._channel: list[str] | None = None

    def add(self, text: str) -> None:
        (self._role if self._channel is None else self._channel).append(text)

    def channel_follows(self) -> None:
        """A channel that is named again counts as named now; what was said of the first one is void."""
        self._channel = []

    @property
    def text(self) -> str:
        return "".join(self._role)

    def is_no_header(self) -> bool:
        """There is no channel, and the text so far can't be the role or a recipient."""
        if self._channel is not None or not self._prompted:
            return False
        text = self.text.lstrip()
        return not any(text.startswith(part) or part.startswith(text) for part in (_ROLE, "to="))

    def function(self) -> str:
        """The name of the function that the message is addressed to."""
        return self._recipient().removeprefix(_FUNCTIONS)

    def _recipient(self) -> str:
        found = _RECIPIENT.findall("".join(self._channel or ())) or _RECIPIENT.findall(self.text)
        return found[0] if found else ""

    def is_analysis(self) -> bool:
        return self._channel_name() == "analysis"

    def _channel_name(self) -> str:
        """The channel's first word, which a model may spell in capitals or run into the recipient."""
        words = _RECIPIENT.sub(" ", "".join(self._channel or ())).split()
        return words[0].lower() if words else ""

    def kind(self) -> MessageKind:
        role = _RECIPIENT.sub(" ", self.text).strip()
        if not self._prompted and role != _ROLE:
            return MessageKind.HIDDEN
        recipient = self._recipient()
        if recipient and recipient not in _NOBODY:
            return MessageKind.CALL
        channel = self._channel_name()
        if channel in ("final", "commentary") or self._channel is None:
            return MessageKind.CONTENT
        return MessageKind.REASONING if channel == "analysis" else MessageKind.HIDDEN
