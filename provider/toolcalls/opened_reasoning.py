"""Had the prompt opened reasoning? Where it isn't known, the output tells: it closes what it never opened.

Only a closer counts that would be read as one: not a call's text, and no mention in quotation marks.
"""

from __future__ import annotations

import re

from provider.toolcalls.families import Markup, Schemas
from provider.toolcalls.marks import Broken, Done, Held, Mark, Released, Visible
from provider.toolcalls.parser import CallParser
from provider.toolcalls.raw_text import RawText


def opened_by_prompt(text: str, markup: Markup, schemas: Schemas, think: tuple[str, str]) -> bool:
    """Whether reasoning had been open when `text`, a whole output, began."""
    opener, closer = think
    if closer not in text:
        return False
    outside = _outside_calls(text, CallParser(markup, schemas, think=think))
    mention = re.compile(rf"([`'\"]){re.escape(closer)}\1")
    outside = mention.sub("", outside)
    opened, closed = outside.find(opener), outside.find(closer)
    return closed >= 0 and not 0 <= opened < closed


def _outside_calls(text: str, parser: CallParser) -> str:
    """What is visible of `text` if no reasoning was open, the text of calls that are none included."""
    # A line before it, since the parser takes a closer that nothing stands before for no text.
    parser.push(f".\n{text}")
    parser.finish("stop")
    visible: list[str] = []
    held = RawText()
    while (marks := parser.step()) is not None:
        for mark in marks:
            _take(mark, visible, held)
    return "".join(visible)


def _take(mark: Mark, visible: list[str], held: RawText) -> None:
    match mark:
        case Visible():
            visible.append(mark.text)
        case Held():
            held.add(*mark)
        case Done():
            held.clear()
        case Released() | Broken(pending=False):
            visible += [stretch for stretch, _start in held.take()]
