from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from provider.logs import configure_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_begin_with_the_event() -> None:
    out = io.StringIO()
    configure_logs("info", "auto", out)
    structlog.get_logger().info("job_completed", job_id="j1", tokens=3)
    (line,) = out.getvalue().splitlines()
    document = json.loads(line)
    assert next(iter(document)) == "event"
    assert (document["event"], document["tokens"], document["level"]) == ("job_completed", 3, "info")


def test_what_must_not_be_logged_is_dropped() -> None:
    out = io.StringIO()
    configure_logs("debug", "json", out)
    structlog.get_logger().warning(
        "oops", prompt="secret", content="secret", arguments="secret", token="secret"
    )
    assert "secret" not in out.getvalue()


def test_the_level_is_a_threshold() -> None:
    out = io.StringIO()
    configure_logs("warning", "console", out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert "quiet" not in out.getvalue()
    assert "loud" in out.getvalue()
