"""What a buyer kept of an answer, checked by `malibu-provider receipt verify` against the gateway's keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cli.main import run
from gateway_protocol.signing import ProviderKey
from provider.jobs.plan import AnswerRules
from tests.cli.processes import command
from tests.e2e.agents import hermes
from tests.fakes.stack import GPT_OSS, QWEN, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

Out = pytest.CaptureFixture[str]
WRITE = ("write_file", {"path": "é.py", "text": "\tx = 1\n"})
TOOLS = [{"type": "function", "function": {"name": "write_file", "parameters": {"type": "object"}}}]
FOREIGN = "pyd_ai_5f5f"
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Write, "}, {"type": "text", "text": "please."}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": FOREIGN, "type": "function", "function": {"name": "write_file", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": FOREIGN, "content": [{"type": "text", "text": "ok"}]},
]
LINES: list[dict[str, Any]] = [
    {"match": "a call", "text": hermes(*WRITE)},
    {"match": "prose and calls", "text": "I will, first.\n" + hermes(*WRITE) + "\n" + hermes(*WRITE)},
    {"match": "thought", "text": "<think>\nTwo and two.\n</think>\n\nIt is 4."},
    {"match": "cut", "text": "All along the", "finish_reason": "length"},
    {"match": "failing", "text": "Half an answer, and then", "fault": "raise", "fault_after_tokens": 4},
    {"match": "forbidden", "text": "<|channel|>commentary to=functions.rm <|message|>{}<|call|>"},
    {"text": "Hello, Zürich! 🧲"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    rules = AnswerRules(parallel_when_omitted="all", streaming="incremental")
    async with Stack(folder, *LINES, models=(QWEN, GPT_OSS), rules=rules) as stack:
        yield stack


@pytest.fixture(autouse=True)
def _no_key_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALIBU_PROVIDER_HOME", str(tmp_path / "nobody"))


@dataclass
class Record:
    """A request and its answer, as text."""

    request: str
    response: str
    keys: str
    folder: Path

    def arguments(self, *more: str) -> list[str]:
        self.folder.mkdir(exist_ok=True)
        files = []
        for name, text in (("request", self.request), ("response", self.response)):
            (self.folder / name).write_text(text, encoding="utf-8")
            files += [f"--{name}", str(self.folder / name)]
        return ["receipt", "verify", *files, "--keys", self.keys, *more]

    async def verified(self, capsys: Out, *more: str) -> tuple[int, list[str]]:
        """Exit code and the names of what differs. In a thread: the keys come from this process's gateway."""
        capsys.readouterr()
        code = await asyncio.to_thread(run, self.arguments("--json", *more))
        document = json.loads(capsys.readouterr().out)
        assert code == {"valid": 0, "invalid": 1, "inconclusive": 3}[document["verdict"]]
        return code, [difference["name"] for difference in document["differences"]]


async def recorded(it: Stack, folder: Path, ask: str = "Hi", *, stream: bool, **fields: Any) -> Record:
    body = {"model": QWEN.id, "messages": [{"role": "user", "content": ask}], "tools": TOOLS, "user": "me"}
    body |= {"stream": stream, "stream_options": {"include_usage": True} if stream else None} | fields
    async with it.http.post(f"{it.gateway.url}/v1/chat/completions", json=body) as response:
        text = await response.text()
        if not stream:
            assert response.headers["x-malibu-receipt"] == json.loads(text)["malibu"]["receipt"]
    return Record(json.dumps(body), text, f"{it.gateway.url}/v1/providers/keys", folder / "record")


ANSWERS: dict[str, dict[str, Any]] = {
    "text": {},
    "a call": {"ask": "a call"},
    "prose and calls": {"ask": "prose and calls"},
    "reasoning hidden": {"ask": "thought"},
    "reasoning shown": {"ask": "thought", "include_reasoning": True},
    "cut": {"ask": "cut", "max_completion_tokens": 77, "unknown_field": {"big": 2**60, "z": [None]}},
    "stop string": {"stop": [" Zü"], "logprobs": True},
    "history": {"messages": HISTORY, "metadata": {"a": "b"}, "temperature": None},
    "failed": {"ask": "failing"},
    "failed closed": {"ask": "forbidden", "model": GPT_OSS.id},
}


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_every_answer_s_receipt_is_valid(
    it: Stack, tmp_path: Path, capsys: Out, name: str, stream: bool
) -> None:
    record = await recorded(it, tmp_path, **ANSWERS[name], stream=stream)
    assert ("error" in record.response) == name.startswith("failed")
    assert await record.verified(capsys) == (0, [])


@pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])
async def test_as_a_command_of_its_own(it: Stack, tmp_path: Path, stream: bool) -> None:
    record = await recorded(it, tmp_path, "a call", stream=stream)
    done = await asyncio.to_thread(command, tmp_path / "nobody", *record.arguments())
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "valid")
    record.response = record.response.replace("é", "e")
    done = await asyncio.to_thread(command, tmp_path / "nobody", *record.arguments())
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "invalid")
    assert "tool_calls: " in done.stdout


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def counts(name: str) -> Callable[[str], str]:
    """One token more."""

    def change(text: str) -> str:
        before, after = text.rsplit(f'"{name}":', 1)
        digits = after[: len(after) - len(after.lstrip("0123456789"))]
        return f'{before}"{name}":{int(digits) + 1}{after[len(digits) :]}'

    return change


def one_chunk_twice(text: str) -> str:
    blocks = text.split("\n\n")
    [place] = [place for place, block in enumerate(blocks) if '"role"' in block]
    return "\n\n".join([*blocks[: place + 2], *blocks[place + 1 :]])


def two_chunks_joined_otherwise(text: str) -> str:
    """The same words, the same number of pieces, cut elsewhere."""
    return swap('"content":"Hell"', '"content":"Hel"')(swap('"content":"o, Z"', '"content":"lo, Z"')(text))


TAMPERED: list[tuple[str, dict[str, Any], bool | None, Callable[[str], str], list[str]]] = [
    ("a character of the content", {}, False, swap("Zürich", "Zurich"), ["content"]),
    ("a character of a piece", {}, True, swap("Z", "z"), ["content", "chain"]),
    ("a character of arguments", {"ask": "a call"}, None, swap("é", "e"), ["tool_calls"]),
    ("the name of a call", {"ask": "a call"}, None, swap("write_file", "write_file2"), ["tool_calls"]),
    ("the ID of a call", {"ask": "a call"}, None, swap('"id":"call_', '"id":"call_0'), ["tool_calls"]),
    ("the reason", {}, None, swap('"finish_reason":"stop"', '"finish_reason":"length"'), ["finish_reason"]),
    (
        "reasoning",
        {"ask": "thought", "include_reasoning": True},
        None,
        swap('"reasoning_content":"T', '"reasoning_content":"t'),
        ["content", "reasoning_content"],  # one hash covers both, so it is one or the other
    ),
    ("prompt tokens", {}, None, counts("prompt_tokens"), ["usage"]),
    ("completion tokens", {}, None, counts("completion_tokens"), ["usage"]),
    ("cached tokens", {}, None, counts("cached_tokens"), ["usage"]),
    ("the model", {}, None, swap(f'"model":"{QWEN.id}"', '"model":"qwen3-other"'), ["model"]),
    ("prose before a call", {"ask": "prose and calls"}, True, swap("I wi", "I do"), ["chain"]),
    ("the same words in other pieces", {}, True, two_chunks_joined_otherwise, ["chain"]),
    ("a piece twice", {}, True, one_chunk_twice, ["content", "chunks"]),
]


@pytest.mark.parametrize(
    ("fields", "stream", "change", "differs"),
    [
        (fields, stream, change, differs)
        for _, fields, only, change, differs in TAMPERED
        for stream in ([only] if only is not None else [False, True])
    ],
    ids=[
        f"{name}, {'streamed' if stream else 'buffered'}"
        for name, _, only, _, _ in TAMPERED
        for stream in ([only] if only is not None else [False, True])
    ],
)
async def test_what_was_changed_is_named(
    it: Stack,
    tmp_path: Path,
    capsys: Out,
    fields: dict[str, Any],
    stream: bool,
    change: Callable[[str], str],
    differs: list[str],
) -> None:
    record = await recorded(it, tmp_path, **fields, stream=stream)
    record.response = change(record.response)
    code, named = await record.verified(capsys)
    assert code == 1
    # Where pieces changed, the chain over them is another, too.
    assert [name for name in named if name not in ("chain", "chunks") or name in differs] == differs
    assert stream or named == differs


@pytest.mark.parametrize(
    "change",
    [
        swap('"Hi"', '"hi"'),
        swap('"write_file"', '"write_files"'),
        swap('"tools"', '"tool"'),
        swap("qwen3-test", "qwen3-tess"),
    ],
)
async def test_another_request_is_named(
    it: Stack, tmp_path: Path, capsys: Out, change: Callable[[str], str]
) -> None:
    record = await recorded(it, tmp_path, stream=False)
    record.request = change(record.request)
    assert await record.verified(capsys) == (1, ["request"])


async def test_what_the_receipt_leaves_out_may_differ(it: Stack, tmp_path: Path, capsys: Out) -> None:
    """`stream`, `stream_options`, `user` and `metadata` don't count, nor do nulls; foreign IDs count as
    rewritten."""
    record = await recorded(it, tmp_path, stream=True, messages=HISTORY)
    body = json.loads(record.request)
    for name in ("user", "stream", "stream_options"):
        del body[name]
    del body["messages"][1]["refusal"], body["messages"][1]["content"]
    record.request = json.dumps(body | {"metadata": {"x": 1}, "seed": None}, indent=3)
    assert await record.verified(capsys) == (0, [])


async def test_a_changed_or_another_receipt(it: Stack, tmp_path: Path, capsys: Out) -> None:
    record = await recorded(it, tmp_path, stream=False)
    token = json.loads(record.response)["malibu"]["receipt"]
    head, payload, signature = token.split(".")
    file = tmp_path / "receipt"
    other = "A" if signature[10] != "A" else "B"
    file.write_text(f"{head}.{payload}.{signature[:10]}{other}{signature[11:]}")
    assert await record.verified(capsys, "--receipt", str(file)) == (1, ["signature"])
    another = await recorded(it, tmp_path, "thought", stream=False)
    file.write_text(json.loads(another.response)["malibu"]["receipt"])
    code, named = await record.verified(capsys, "--receipt", str(file))
    assert (code, named[0]) == (1, "request")
    assert "content" in named


async def test_a_key_that_nobody_knows(it: Stack, tmp_path: Path, capsys: Out) -> None:
    record = await recorded(it, tmp_path, stream=True)
    stranger = tmp_path / "keys.json"
    stranger.write_text(json.dumps({"keys": [ProviderKey.generate().public_key]}))
    record.keys = str(stranger)
    code, named = await record.verified(capsys)
    assert (code, named) == (3, ["key"])
