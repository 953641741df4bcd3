"""Follow the lines of visible text: fenced code blocks, and where a bare JSON object may begin a call."""

from __future__ import annotations

_FENCE = "```"


class LineTracker:
    """`feed` all visible text in order. `fenced`: inside a block that a line beginning with ``` opened.

    `loose`: nothing but white space and separators came since the output or the last call.
    """

    def __init__(self, separators: str = "") -> None:
        self._blanks = " \t\r\n" + separators
        self._prefix: str | None = ""  # of the current line, while it may still open or close a fence
        self.fenced = False
        self.loose = True

    @property
    def settled(self) -> bool:
        """Until the next line break no text can change anything here."""
        return self._prefix is None and not self.loose

    @property
    def blank(self) -> bool:
        """The current line holds white space at most."""
        return self._prefix is not None and not self._prefix.strip(" \t")

    def new_line(self) -> None:
        """What comes next begins a line: markup stood before it."""
        self._prefix = ""

    def after_call(self) -> None:
        """A call, which never begins inside a fence, was read; its text may have looked like one."""
        self.new_line()
        self.loose = True
        self.fenced = False

    def feed(self, text: str) -> None:
        if self.loose and text.strip(self._blanks):
            self.loose = False
        for number, line in enumerate(text.split("\n")):
            if number:
                self._prefix = ""
            if self._prefix is not None and line:
                self._begin(self._prefix + line)

    def _begin(self, prefix: str) -> None:
        visible = prefix.lstrip(" \t")
        # One blank stands for any number: a line of a megabyte of them must not be copied at each feed.
        undecided = _FENCE.startswith(visible) and visible != _FENCE
        self._prefix = prefix[:1].strip("`") + visible if undecided else None
        if visible.startswith(_FENCE):
            self.fenced = not self.fenced

    def bare_object(self, text: str) -> int | None:
        """Where a JSON object begins that may be a call; text up to there, or all of it, is followed."""
        position = 0
        while position < len(text):
            end = text.find("\n", position) + 1 or len(text)
            line = text[position:end]
            if not self.fenced and (self.loose or self._prefix == ""):
                stripped = line.lstrip(self._blanks) if self.loose else line
                if stripped.startswith("{"):
                    at = position + len(line) - len(stripped)
                    self.feed(text[position:at])
                    return at
            self.feed(line)
            position = end
        return None
