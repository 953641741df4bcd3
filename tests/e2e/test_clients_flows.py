"""The examples of docs/contract.md against running stacks: each markup scripted, and the fixture model."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from gateway_protocol.families import Family
from provider.engine.spec import ModelSpec
from provider.jobs.plan import AnswerRules
from tests.e2e.agents import hermes, xml
from tests.e2e.tiny_model import FIXTURE, TINY
from tests.fakes.stack import GPT_OSS, QWEN, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LLAMA = ModelSpec("llama-3.3-test", Family.LLAMA, context_length=40_000)
OSLO = {"city": "Oslo"}
HARMONY = (
    "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
)
LINES: list[dict[str, Any]] = [
    {"match": "by hermes", "text": hermes("get_weather", OSLO)},
    {"match": "by xml", "text": xml("get_weather", OSLO)},
    {"match": "by llama", "text": '{"name": "get_weather", "parameters": {"city": "Oslo"}}'},
    {"match": "by harmony", "text": HARMONY},
    {"match": "broken", "text": HARMONY.replace("get_weather", "rm_rf")},
    {"match": '"celsius": -3', "text": "It is cold in Oslo, -3 degrees."},
    {"text": "Hello."},
]
FLOWS = [(QWEN.id, "by hermes"), (QWEN.id, "by xml"), (LLAMA.id, "by llama"), (GPT_OSS.id, "by harmony")]


@pytest.fixture(scope="module", autouse=True)
def _examples() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder, models = tmp_path_factory.mktemp("flows"), (QWEN, GPT_OSS, LLAMA)
    async with Stack(folder, *LINES, models=models, rules=AnswerRules(streaming="incremental")) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tiny(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    # The examples leave sampling to the model, so its own settings say that it is greedy.
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copytree(FIXTURE, folder / TINY.id)
    settings = json.loads((FIXTURE / "generation_config.json").read_text())
    greedy = json.dumps(settings | {"do_sample": False, "temperature": 0})
    (folder / TINY.id / "generation_config.json").write_text(greedy)
    spec = dataclasses.replace(TINY, path=folder / TINY.id)
    async with Stack(folder, backend="mlx", models=(spec,)) as stack:
        yield stack


async def example(it: Stack, name: str, function: str, *arguments: Any) -> Any:
    """Run one of the examples' functions, which wait for their answers, beside the stack's loop."""

    def run() -> Any:
        with openai.OpenAI(base_url=f"{it.gateway.url}/v1", api_key="none", max_retries=0) as client:
            return getattr(importlib.import_module(name), function)(client, *arguments)

    return await asyncio.to_thread(run)


@pytest.mark.parametrize(("model", "ask"), FLOWS, ids=[ask for _, ask in FLOWS])
async def test_single_turn(it: Stack, model: str, ask: str) -> None:
    assert await example(it, "single_turn", "ask", model, ask) == [("get_weather", OSLO)]
    assert await example(it, "single_turn", "ask", model, "Hi") == "Hello."


@pytest.mark.parametrize(("model", "ask"), FLOWS, ids=[ask for _, ask in FLOWS])
async def test_rebuilding_calls_from_a_stream(it: Stack, model: str, ask: str) -> None:
    text, [(call_id, name, arguments)] = await example(it, "rebuild_from_stream", "stream", model, ask)
    assert (text, name, arguments) == ("", "get_weather", OSLO)
    assert call_id.startswith("call_")


@pytest.mark.parametrize(("model", "ask"), FLOWS, ids=[ask for _, ask in FLOWS])
async def test_feeding_a_result_back(it: Stack, model: str, ask: str) -> None:
    if model == GPT_OSS.id:  # takes no tool history
        with pytest.raises(openai.BadRequestError) as refused:
            await example(it, "feed_result_back", "converse", model, ask)
        assert refused.value.code == "unsupported_modelID_for_multi_turn"
        return
    told = await example(it, "feed_result_back", "converse", model, ask)
    assert told == "It is cold in Oslo, -3 degrees."
    assert json.loads(it.engine.asked[-1].messages[-1]["content"]) == {"city": "Oslo", "celsius": -3}


async def test_no_call_is_taken_from_a_stream_that_failed(it: Stack) -> None:
    with pytest.raises(openai.APIError) as raised:
        await example(it, "rebuild_from_stream", "stream", GPT_OSS.id, "broken")
    assert raised.value.code == "malformed_tool_call_final_json"


async def test_with_the_fixture_model(tiny: Stack) -> None:
    """Real decoding, held by a grammar to the examples' own tool."""
    question = "What is the weather in Paris?"
    [(name, arguments)] = await example(tiny, "single_turn", "ask", TINY.id, question)
    assert (name, list(arguments)) == ("get_weather", ["city"])
    text, [(_, name, arguments)] = await example(tiny, "rebuild_from_stream", "stream", TINY.id, question)
    assert (text, name, list(arguments)) == ("", "get_weather", ["city"])
