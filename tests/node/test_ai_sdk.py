"""@ai-sdk/openai-compatible, on which OpenCode and Cline stand, drives a tool loop of two steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provider.jobs.plan import AnswerRules
from tests.e2e.agents import CODE, hermes, xml
from tests.fakes.stack import QWEN, Stack
from tests.node import installed

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

WEATHER = {"city": "Berlin", "days": 3}
FILE = {"path": "notes.txt", "text": CODE, "mode": None}


def script(markup: Any) -> list[dict[str, Any]]:
    thought = "<think>\nFirst the forecast.\n</think>\n\n"
    return [
        {
            "match": "weather in Berlin",
            "text": thought + markup("get_weather", WEATHER),
            "chars_per_token": 3,
        },
        {"match": "4 degrees", "text": "\n\n" + markup("write_file", FILE), "chars_per_token": 3},
        {"match": "written", "text": "It is written: 4 degrees.", "chars_per_token": 3},
    ]


@pytest.mark.parametrize(
    ("how", "streaming"),
    [("buffered", "auto"), ("streamed", "auto"), ("streamed", "incremental")],
    ids=["buffered", "streamed whole", "streamed in pieces"],
)
@pytest.mark.parametrize("markup", [hermes, xml], ids=["hermes", "xml"])
async def test_two_steps_with_a_tool_each(tmp_path: Path, markup: Any, how: str, streaming: Any) -> None:
    rules = AnswerRules(streaming=streaming)
    async with Stack(tmp_path, *script(markup), models=(QWEN,), rules=rules) as it:
        told = await installed.run(tmp_path, "tool_loop.mjs", f"{it.gateway.url}/v1", QWEN.id, how)
        asked = [request.messages for request in it.engine.asked]
    assert told["ran"] == [
        {"name": "get_weather", "input": WEATHER},
        {"name": "write_file", "input": FILE},
    ]
    assert told["text"] == "It is written: 4 degrees."
    first, second, third = told["steps"]
    assert [step["finishReason"] for step in told["steps"]] == ["tool-calls", "tool-calls", "stop"]
    assert [len(step["calls"]) for step in told["steps"]] == [1, 1, 0]
    assert (first["text"], second["text"], third["text"]) == ("", "", told["text"])
    assert first["reasoning"] is None  # nobody asked for it
    assert first["calls"][0]["input"] == WEATHER
    assert told["usage"]["inputTokens"] > 0
    assert told["usage"]["outputTokens"] > 0
    if how == "streamed":
        assert {"tool-input-start", "tool-input-delta", "tool-call", "text-delta"} <= set(told["parts"])
        assert told["parts"].count("tool-input-delta") > (20 if streaming == "incremental" else 1)
        assert "error" not in told["parts"]
    # Three requests; the history of each is that of the one before, and more.
    assert [len(messages) for messages in asked] == [2, 4, 6]
    assert asked[2][:4] == asked[1]
    assert asked[2][4]["tool_calls"][0]["function"]["arguments"] == FILE
    assert json.loads(asked[1][3]["content"]) == {"forecast": "4 degrees"}


async def test_the_versions_are_the_pinned_ones() -> None:
    package = json.loads((installed.HERE / "package.json").read_text())
    found = installed.versions()
    for name, version in {**package["dependencies"], **package["overrides"]}.items():
        assert found[name] == version
