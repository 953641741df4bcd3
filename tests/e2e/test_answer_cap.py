"""Over 2 MiB of arguments in one answer: an error, and on a stream the whole calls before it stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.stack import QWEN, Stack

TOOL = {"type": "function", "function": {"name": "save", "parameters": {"type": "object"}}}
CALL = {"name": "save", "arguments": {"text": "x" * 900_000}}
TEXT = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>\n" * 3


@pytest.mark.asyncio
async def test_the_cap_of_an_answer(tmp_path: Path) -> None:
    asked = {
        "model": QWEN.id,
        "messages": [{"role": "user", "content": "save"}],
        "tools": [TOOL],
        "parallel_tool_calls": True,
        "max_tokens": 20_000,
    }
    async with Stack(tmp_path, {"text": TEXT, "chars_per_token": 8192}) as it:
        status, answer = await it.post(asked)
        error = answer["error"]
        assert (status, error["code"], error["param"]) == (502, "response_byte_cap_exceeded", None)
        assert (error["type"], error["retryable"]) == ("api_error", False)
        streamed = await it.stream(asked)
        assert [each["code"] for each in streamed.errors] == ["response_byte_cap_exceeded"]
        assert (streamed.finish_reasons, streamed.done) == ([], True)
        assert [json.loads(call["arguments"]) for call in streamed.calls[:2]] == [CALL["arguments"]] * 2
