"""The scripted engine's file: what it takes, and how it says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway_protocol.families import Family
from provider.engine.errors import ScriptError
from provider.engine.script import ScriptLine, answer_for, load_script, tokenize
from tests.provider.engine.conftest import write_script


def test_reads_every_field_and_skips_blank_lines(tmp_path: Path) -> None:
    path = write_script(
        tmp_path / "script.jsonl",
        {
            "match": "weather",
            "text": "Sunny \u2028 today",
            "finish_reason": "length",
            "chars_per_token": 1,
            "ms_per_token": 2.5,
            "prefill_ms": 7,
            "fault": "raise",
            "fault_after_tokens": 3,
            "ignore_stop": True,
        },
        {"text": "Anything.", "match": None},
    )
    path.write_text("\n" + path.read_text(encoding="utf-8") + "\n\n", encoding="utf-8")
    first, second = load_script(path)
    assert first == ScriptLine("Sunny \u2028 today", "weather", "length", 1, 2.5, 7, "raise", 3, True)
    assert second == ScriptLine("Anything.")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "script.jsonl:2: is not JSON"),
        ("[1]", "script.jsonl:2: must be a JSON object"),
        ('{"match": "x"}', '"text" is missing'),
        ('{"text": 1}', '"text" has the wrong type'),
        ('{"text": "x", "ms_per_token": true}', '"ms_per_token" has the wrong type'),
        ('{"text": "x", "txet": "y"}', 'unknown key "txet" (known: match, text'),
        ('{"text": "x", "finish_reason": "tool_calls"}', '"finish_reason" must be one of stop, length'),
        ('{"text": "x", "fault": "explode"}', '"fault" must be one of raise, hang, exit'),
        ('{"text": "x", "chars_per_token": 0}', '"chars_per_token" must be at least 1'),
        ('{"text": "x", "ms_per_token": -1}', '"ms_per_token" must be at least 0'),
        ('{"text": "\\ud83d"}', '"text" holds half a surrogate pair'),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        load_script(path)
    assert problem in str(caught.value)
    assert caught.value.line == 2
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [None, "", "\n\n"])
def test_a_file_without_lines_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "script.jsonl"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ScriptError, match=r"script\.jsonl: "):
        load_script(path)


def test_the_first_line_that_matches_answers() -> None:
    script = [ScriptLine("a", match="one"), ScriptLine("b", match="on"), ScriptLine("c")]
    assert answer_for(script, "one") is script[0]
    assert answer_for(script, "on it") is script[1]
    assert answer_for(script, "else") is script[2]
    assert answer_for(script[:2], "else") is None


@pytest.mark.parametrize("size", [1, 4, 7])
def test_tokens_hold_the_text_whole(size: int) -> None:
    line = ScriptLine("Grüße 👋🏽 an alle", chars_per_token=size)
    tokens = tokenize(line, Family.NONE)
    assert "".join(tokens.texts) == line.text
    assert all(len(text) == size for text in tokens.texts[:-1])
    assert len(tokens.ids) == len(tokens.texts)


def _special(line: dict[str, Any], family: Family) -> list[tuple[str, int]]:
    tokens = tokenize(ScriptLine(**line), family)
    return list(zip(tokens.texts, tokens.ids, strict=True))


def test_a_spelled_special_token_is_that_token() -> None:
    pairs = _special({"text": "<|channel|>final<|message|>Hi", "chars_per_token": 5}, Family.GPT_OSS)
    assert pairs[0] == ("<|channel|>", 200005)
    assert pairs[1][0] == "final"
    assert pairs[2] == ("<|message|>", 200008)
    assert pairs[3][0] == "Hi"
