from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import run

Out = pytest.CaptureFixture[str]
QWEN = "mlx-community/Qwen3-8B-4bit"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Zürich"}}\n</tool_call>'


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([TOOL]))
    return str(file)


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "output.txt"
    file.write_text(text, encoding="utf-8")
    return str(file)


def parsed(capsys: Out, *arguments: str) -> list[Any]:
    assert run(["parse", *arguments]) == 0
    out = capsys.readouterr().out
    return [json.loads(line) for line in out.splitlines()] if "--stream" in arguments else [json.loads(out)]


def test_a_call_becomes_a_completion(tmp_path: Path, tools: str, capsys: Out) -> None:
    (completion,) = parsed(capsys, "--model", QWEN, "--tools", tools, write(tmp_path, CALL))
    choice = completion["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"at": "Zürich"}


def test_the_chunks_of_a_stream(tmp_path: Path, tools: str, capsys: Out) -> None:
    file = write(tmp_path, "Well.\n" + CALL)
    chunks = parsed(capsys, "--model", QWEN, "--tools", tools, "--stream", "--chunk-chars", "3", file)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "Well."
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_whole_request_serves_as_tools_and_the_output_may_come_from_a_pipe(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": QWEN, "messages": [], "tools": [TOOL]}))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((CALL + CALL).encode())))
    arguments = ("--model", QWEN, "--tools", str(request), "--parallel-tool-calls", "-")
    (completion,) = parsed(capsys, *arguments)
    assert len(completion["choices"][0]["message"]["tool_calls"]) == 2


def test_the_strict_contract_and_a_cut_output(tmp_path: Path, tools: str, capsys: Out) -> None:
    file = write(tmp_path, CALL[:-20])
    (completion,) = parsed(capsys, "--model", QWEN, "--tools", tools, "--finish-reason", "length", file)
    assert completion["choices"][0]["finish_reason"] == "length"
    (error,) = parsed(capsys, "--model", QWEN, "--contract", "strict", write(tmp_path, CALL))
    assert error["error"]["code"] == "upstream_error"


def test_a_catalogue_model_has_the_catalogues_family(tmp_path: Path, tools: str, capsys: Out) -> None:
    (completion,) = parsed(
        capsys, "--model", "smollm2-135m-instruct", "--tools", tools, write(tmp_path, CALL)
    )
    assert completion["choices"][0]["finish_reason"] == "tool_calls"


def test_cases_give_a_line_each(tmp_path: Path, capsys: Out) -> None:
    cases = tmp_path / "cases.jsonl"
    line = {"id": "a", "family": "qwen_hermes", "tools": [TOOL], "text": CALL + "\u2028", "finish": "stop"}
    cases.write_text(json.dumps(line, ensure_ascii=False) + "\n\n" + json.dumps({**line, "id": "b"}) + "\n")
    assert run(["parse", "--cases", str(cases), "--chunk-chars", "2"]) == 0
    results = [json.loads(result) for result in capsys.readouterr().out.split("\n") if result]
    assert [result["id"] for result in results] == ["a", "b"]
    for result in results:
        assert result["buffered"]["finish_reason"] == result["streamed"]["finish_reason"] == "tool_calls"


def test_a_case_that_is_refused_has_its_code_in_the_error(tmp_path: Path, capsys: Out) -> None:
    text = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{} please<|call|>"
    line = {"id": "a", "family": "harmony", "tools": [TOOL], "text": text, "finish": "stop"}
    (result,) = parsed(capsys, "--cases", write(tmp_path, json.dumps(line)))
    for delivery in ("buffered", "streamed"):
        assert set(result[delivery]) == {"error"}
        assert result[delivery]["error"]["code"] == "malformed_tool_call_final_json"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{file}"], "give --model ID and a FILE"),
        (["--model", QWEN], "give --model ID and a FILE"),
        (["--model", "", "{file}"], "give --model ID and a FILE"),
        (["--model", QWEN, "/no/such"], "can't read /no/such"),
        (["--model", QWEN, "{binary}"], "is not UTF-8 (byte 2)"),
        (["--model", QWEN, "--tools", "{file}", "{file}"], "is not JSON"),
        (["--model", QWEN, "--tools", "{number}", "{file}"], "holds no list of tools"),
        (["--model", QWEN, "--tools", "{unnamed}", "{file}"], "--tools: tools[0]"),
        (["--model", QWEN, "--finish-reason", "tired", "{file}"], "--finish-reason: must be stop or length"),
        (["--model", QWEN, "--contract", "loose", "{file}"], "--contract: must be malibu or strict"),
        (["--model", QWEN, "--chunk-chars", "0", "{file}"], "--chunk-chars: must be 1 or more"),
        (["--cases", "{file}"], "output.txt:1: not JSON"),
        (["--cases", "{number}"], "number.json:1: not a case"),
        (["--cases", "{file}", "{file}"], "--cases brings its own"),
    ],
)
def test_bad_usage(tmp_path: Path, capsys: Out, arguments: list[str], words: str) -> None:
    (tmp_path / "binary").write_bytes(b"ok\xff")
    (tmp_path / "number.json").write_text("3")
    (tmp_path / "unnamed.json").write_text('[{"type": "function", "function": {}}]')
    files = {
        "file": write(tmp_path, "text"),
        "binary": str(tmp_path / "binary"),
        "number": str(tmp_path / "number.json"),
        "unnamed": str(tmp_path / "unnamed.json"),
    }
    assert run(["parse", *(argument.format(**files) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1


CASE = {"id": "a", "family": "qwen_hermes", "text": "x", "tools": []}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "not a case: no JSON object"),
        (json.dumps({**CASE, "family": "parrot"}), "not a case: family must be one of qwen_hermes, "),
        (
            json.dumps({name: CASE[name] for name in ("id", "family", "tools")}),
            "not a case: text must be a text",
        ),
        (json.dumps({**CASE, "tools": 5}), "not a case: tools must be a list"),
        (json.dumps({**CASE, "finish": []}), "not a case: finish must be stop or length"),
        (json.dumps({**CASE, "parallel": "yes"}), "not a case: parallel must be true or false"),
        ("[" * 100_000, "not JSON: nested too deep"),
    ],
)
def test_a_line_that_is_no_case_is_told_in_words(tmp_path: Path, capsys: Out, line: str, words: str) -> None:
    assert run(["parse", "--cases", write(tmp_path, line)]) == 2
    said = capsys.readouterr().err
    assert f":1: {words}" in said
    assert len(said.splitlines()) == 1


def test_tools_that_are_nested_too_deep_are_told_in_words(tmp_path: Path, capsys: Out) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    assert run(["parse", "--model", QWEN, "--tools", str(deep), write(tmp_path, "text")]) == 2
    assert "nested too deep" in capsys.readouterr().err
