"""Logs: structlog to stderr, the event's name first, keys after.

Never a prompt, an output, a tool argument, a token or a key: only counts, codes and IDs are logged. A value
whose key names such a thing is dropped here as a last guard.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

FORBIDDEN_KEYS = frozenset(
    {
        "prompt",
        "messages",
        "content",
        "output",
        "text",
        "arguments",
        "reasoning",
        "token",
        "api_key",
        "authorization",
        "private_key",
        "body",
    }
)


def configure_logs(
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Set up logging for this process. `auto`: console on a terminal, JSON elsewhere."""
    out = stream or sys.stderr
    console = style == "console" or (style == "auto" and out.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty(), sort_keys=False)
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            _drop_forbidden,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard module; their warnings belong in the same place.
    logging.basicConfig(
        stream=out, level=max(threshold, logging.WARNING), format="%(name)s: %(message)s", force=True
    )


def _drop_forbidden(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key in FORBIDDEN_KEYS & event.keys():
        event[key] = "(not logged)"
    return event


def _event_first(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {"event": event.pop("event", ""), **event}
