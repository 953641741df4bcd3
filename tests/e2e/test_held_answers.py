"""`response_format` is held wherever the decoder can be: also of models without tool calls, and where the
owner has forcing switched off. Real MLX decoding through the whole stack."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema_rs
import openai
import pytest
import pytest_asyncio

from gateway_protocol.families import Family
from provider.jobs.plan import AnswerRules
from tests.e2e.test_agent_loop import PERSON, WEATHER, as_json
from tests.e2e.tiny_model import TINY, buffered, request, streamed
from tests.fakes.stack import Stack

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PLAIN = replace(TINY, id="tiny-plain", family=Family.NONE)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["malibu", "strict"])
async def it(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    rules = AnswerRules(contract=request.param, force=False)
    folder = tmp_path_factory.mktemp("tiny")
    async with Stack(folder, backend="mlx", models=(TINY, PLAIN), slots=2, rules=rules) as stack:
        yield stack


@pytest.mark.parametrize("model", [TINY.id, PLAIN.id])
@pytest.mark.parametrize("name", ["json", "spiders"])
async def test_an_answer_fits_its_schema(it: Stack, model: str, name: str) -> None:
    asked = request(name, model=model, response_format=as_json(PERSON), max_tokens=200)
    [choice] = (await buffered(it.openai, asked)).choices
    assert choice.finish_reason == "stop"
    assert jsonschema_rs.is_valid(PERSON, json.loads(choice.message.content or ""))
    assert (await streamed(it.openai, asked)).content == choice.message.content


async def test_no_call_is_forced_there(it: Stack) -> None:
    asked: dict[str, Any] = request("capital", tools=[WEATHER], tool_choice="required")
    if it.rules.contract == "strict":
        with pytest.raises(openai.BadRequestError) as refused:
            await buffered(it.openai, asked)
        assert (refused.value.code, refused.value.param) == ("unsupported_field", "tool_choice")
        return
    [choice] = (await buffered(it.openai, asked)).choices
    assert (choice.message.content, choice.finish_reason) == ("Paris is the capital of France.", "stop")


async def test_what_cannot_be_held_is_refused(it: Stack) -> None:
    asked = request("json", model=PLAIN.id, response_format=as_json({"type": "object", "not": {}}))
    with pytest.raises(openai.BadRequestError) as refused:
        await buffered(it.openai, asked)
    assert (refused.value.code, refused.value.param) == ("unsupported_field", "response_format")
