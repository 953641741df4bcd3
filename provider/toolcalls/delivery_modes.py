"""Three ways to deliver one sequence of marks.

whole        nothing of a call until it is complete and valid, then its deltas at once
incremental  a call's deltas as its arguments are generated
buffered     calls at the end only, so that any failure can still become plain text
"""

from __future__ import annotations

from collections.abc import Callable

from provider.toolcalls.delivery import BRACE, Delivery
from provider.toolcalls.events import Event, ToolCallEnd
from provider.toolcalls.marks import Visible
from provider.toolcalls.policy import Cause


class Whole(Delivery):
    def __init__(self, mint: Callable[[], str], *, may_be_plain: bool) -> None:
        super().__init__(mint, may_be_plain=may_be_plain)
        self._collected: list[str] = []

    def _arguments(self, text: str) -> list[Event]:
        self._collected.append(text)
        return []

    def _collect(self) -> str:
        text = "".join(self._collected)
        self._collected.clear()
        return text

    def _drop_call(self) -> None:
        self._collected.clear()

    def _done(self) -> list[Event]:
        self._calls += 1
        return self._whole_call(self._name, self._collect())


class Incremental(Delivery):
    def __init__(self, mint: Callable[[], str], *, may_be_plain: bool) -> None:
        super().__init__(mint, may_be_plain=may_be_plain)
        self._open = False

    def _arguments(self, text: str) -> list[Event]:
        if self._open:
            return self._say(text)
        self._open = True
        # From here on no content may follow.
        self._calls += 1
        return [self._start(self._name), *self._say(BRACE), *self._say(text.removeprefix(BRACE))]

    def _drop_call(self) -> None:
        pass  # nothing was collected: it is out already

    def _done(self) -> list[Event]:
        self._open = False
        return [ToolCallEnd(self._next_index - 1)]


class Buffered(Whole):
    def __init__(self, mint: Callable[[], str], *, may_be_plain: bool) -> None:
        super().__init__(mint, may_be_plain=may_be_plain)
        self._ready: list[tuple[str, str]] = []

    def _visible(self, mark: Visible) -> list[Event]:
        if self._calls and self._may_be_plain:
            self._raw.add(*mark)
        return super()._visible(mark)

    def _done(self) -> list[Event]:
        self._calls += 1
        self._ready.append((self._name, self._collect()))
        return []

    def _released(self) -> list[Event]:
        # Behind a complete call it stays where it is: with everything else that may become plain text.
        return [] if self._calls else super()._released()

    def _shown(self) -> list[Event]:
        self._ready.clear()
        return super()._shown()

    def finish(self, cause: Cause) -> list[Event]:
        if self.failed:
            return []
        calls = [event for name, text in self._ready for event in self._whole_call(name, text)]
        return [*calls, *super().finish(cause)]
