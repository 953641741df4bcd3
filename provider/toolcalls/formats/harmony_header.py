"""The header of a Harmony message: role, channel, recipient and content type, in whatever order they come."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

_RECIPIENT: Final = re.compile(r"to=(\S+)")
_FUNCTIONS: Final = "functions."
_NOBODY: Final = frozenset({"assistant", "user", "all"})
_ROLE: Final = "assistant"
_FIRST_WORD: Final = re.compile(r"\s*\S*\s*")


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
        self._begins = ""
        self._has_tokens = False
        self._typed = False
        self._addressed = ""  # the recipient as of before the channel was named last

    def add(self, text: str) -> None:
        if self._channel is not None:
            self._channel.append(text)
            return
        self._role.append(text)
        if len(self._begins) < len(_ROLE):
            self._begins += text if self._begins else text.lstrip()

    def content_type_follows(self) -> None:
        self._has_tokens = self._typed = True
        self.add(" ")

    def channel_follows(self) -> None:
        """A channel that is named again counts as named now; a recipient stays the recipient."""
        self._has_tokens = True
        self._addressed = self._recipient()
        self._channel = []

    @property
    def text(self) -> str:
        """What stands where the role does."""
        return "".join(self._role)

    def is_no_header(self) -> bool:
        """Text that can be neither a role nor a recipient, with no token of a header in front of it."""
        if self._has_tokens or not self._prompted:
            return False
        begins = self._begins
        return not any(begins.startswith(part) or part.startswith(begins) for part in (_ROLE, "to="))

    def is_bare_text(self) -> bool:
        """The output ended here without a single token: such text is its answer, unless it is a header."""
        alone = self._prompted and not self._has_tokens
        return alone and not self._recipient() and self.text.strip() not in ("", _ROLE)

    def function(self) -> str:
        """The name of the function that the message is addressed to."""
        return self._recipient().removeprefix(_FUNCTIONS)

    def _recipient(self) -> str:
        found = _RECIPIENT.search("".join(self._channel or ())) or _RECIPIENT.search(self.text)
        return found.group(1) if found else self._addressed

    def answer(self) -> str:
        """What stands behind the name of the final channel: an answer whose body was never begun."""
        if self._typed or self._channel is None or self._channel_name() != "final":
            return ""
        if self.kind() is not MessageKind.CONTENT:
            return ""
        return _FIRST_WORD.sub("", "".join(self._channel), count=1)

    def is_analysis(self) -> bool:
        return self._channel_name() == "analysis"

    def _role_name(self) -> str:
        return _RECIPIENT.sub(" ", self.text).strip()

    def _channel_name(self) -> str:
        """The channel's first word, in capitals or not. Where its token is missing it may follow the role."""
        said = self._role_name().removeprefix(_ROLE) if self._channel is None else "".join(self._channel)
        words = _RECIPIENT.sub(" ", said).split()
        return words[0].lower() if words else ""

    def kind(self) -> MessageKind:
        if not self._prompted and not self._role_name().startswith(_ROLE):
            return MessageKind.HIDDEN
        recipient = self._recipient()
        if recipient and recipient not in _NOBODY:
            return MessageKind.CALL
        match self._channel_name():
            case "final" | "commentary":
                return MessageKind.CONTENT
            case "analysis":
                return MessageKind.REASONING
            case "" if self._channel is None:
                return MessageKind.CONTENT
        return MessageKind.HIDDEN
