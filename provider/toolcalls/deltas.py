"""An event as the OpenAI delta that carries it."""

from __future__ import annotations

from gateway_protocol.messages import Delta, FunctionDelta, ToolCallDelta
from provider.toolcalls.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallStart,
)


def to_delta(event: Event) -> Delta | None:
    """The delta of one event; `None` for those that carry nothing (ends, stops, failures)."""
    match event:
        case TextDelta(text=text):
            return Delta(content=text)
        case ReasoningDelta(text=text):
            return Delta(reasoning_content=text)
        case ToolCallStart(index=index, call_id=call_id, name=name):
            function = FunctionDelta(name=name, arguments="")
            return Delta(
                tool_calls=(ToolCallDelta(index=index, id=call_id, type="function", function=function),)
            )
        case ToolCallArgumentsDelta(index=index, text=text):
            return Delta(tool_calls=(ToolCallDelta(index=index, function=FunctionDelta(arguments=text)),))
    return None
