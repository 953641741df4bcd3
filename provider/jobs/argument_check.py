"""Whether delivered arguments fit their functions' schemas: only said, never enforced. Pure.

Without `strict` a schema guides, it never rejects (docs/contract.md); but where a grammar couldn't hold all
of it, or none held the model, whoever runs the provider should see how often it is missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provider.toolcalls.events import Event, ToolCallArgumentsDelta, ToolCallEnd, ToolCallStart
from provider.toolcalls.limits import fits


class ArgumentCheck:
    """`see` every event of an answer; `misfits` then names the functions whose arguments don't fit.

    `tools`: parameter schemas by name, `None` where a function declares none.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._tools = tools
        self._open: dict[int, tuple[str, list[str]]] = {}
        self.misfits: list[str] = []

    def see(self, event: Event) -> None:
        if isinstance(event, ToolCallStart):
            self._open[event.index] = (event.name, [])
        elif isinstance(event, ToolCallArgumentsDelta):
            self._open[event.index][1].append(event.text)
        elif isinstance(event, ToolCallEnd):
            name, pieces = self._open.pop(event.index)
            schema = self._tools.get(name)
            if schema is not None and not fits("".join(pieces), schema):
                self.misfits.append(name)
