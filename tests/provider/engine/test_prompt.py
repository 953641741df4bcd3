"""A model's text side: rendering, refusals, end tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken, Tokenizer

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from provider.engine.base import SamplingParams, StopCause, ThinkMarkers
from provider.engine.process import EngineProcess
from provider.engine.prompt import PromptRefused, TextModel
from provider.engine.spec import EngineSettings, ModelSpec
from tests.provider.engine.driving import FIXTURE, ask, run
from tests.provider.engine.random_models import make_random_model

THINK = ThinkMarkers("<think>", "</think>")


def text_model(
    folder: Path, template: str | None = None, generation: dict[str, Any] | None = None
) -> TextModel:
    if not folder.exists():
        shutil.copytree(FIXTURE, folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return TextModel(ModelSpec("m", Family.QWEN, 4096, path=folder, think=THINK))


def rendered(model: TextModel, text: str = "Hi", **kwargs: Any) -> str:
    return model.render_text([{"role": "user", "content": text}], None, kwargs)


def test_a_template_gets_the_settings_it_reads_and_no_others(tmp_path: Path) -> None:
    template = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ messages[0].content }}"
    model = text_model(tmp_path / "m", template)
    assert rendered(model, reasoning_effort="low", enable_thinking=False) == "low|False|Hi"
    # One it doesn't read would clash with what the renderer itself takes.
    plain = text_model(tmp_path / "m", "{{ messages[0].content }}")
    assert rendered(plain, tokenize=True, add_generation_prompt=False, enable_thinking=True) == "Hi"


@pytest.mark.parametrize("text", ["Hi", "  two  spaces\n\n", "<|im_end|>x", "🧲鉄 é\u200b", "a" * 3_000])
def test_a_prompt_is_tokenized_whole_whatever_the_tokenizers_file_cuts_or_pads(
    tmp_path: Path, text: str
) -> None:
    plain = text_model(tmp_path / "plain")
    shutil.copytree(FIXTURE, tmp_path / "cut")
    file = tmp_path / "cut" / "tokenizer.json"
    cutting = Tokenizer.from_file(str(file))
    cutting.enable_truncation(8)
    cutting.enable_padding(length=4_096)
    cutting.save(str(file))
    request = ask(text)
    rendered_text = plain.render_text(request.messages, None, {})
    expected = plain.tokenizer.encode(rendered_text, add_special_tokens=False)
    for model in (plain, text_model(tmp_path / "cut")):
        assert model.render(request).tokens == expected


def test_history_calls_reach_the_template_as_objects(tmp_path: Path) -> None:
    model = text_model(tmp_path / "m")
    call = {"type": "function", "id": "call_1", "function": {"name": "f", "arguments": {"x": [1, None]}}}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    text = model.render_text(messages, None, {})
    assert '{"name": "f", "arguments": {"x": [1, null]}}' in text
    assert "<tool_response>\ndone\n</tool_response>" in text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate."),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[7].content.upper() }}", "no element 7"),
        ("{% for x in messages %}", "Unexpected end of template"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_fails_is_the_buyer_s_error_with_its_words(
    tmp_path: Path, template: str, words: str
) -> None:
    model = text_model(tmp_path / "m", template)
    with pytest.raises(PromptRefused) as caught:
        rendered(model)
    assert caught.value.rejected.code is ErrorCode.INVALID_REQUEST
    assert words in caught.value.rejected.message


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURE, tmp_path / "m"))
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PromptRefused, match="chat template"):
        rendered(text_model(folder))


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    model = text_model(tmp_path / "m", "{# nothing #}")
    with pytest.raises(PromptRefused, match="empty"):
        model.render(ask("Hi"))


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        ("{{ messages[0].content }}<think>\n", True),
        ("{{ messages[0].content }}<think>\n\n</think>\n\n", False),
        ("<think>{{ messages[0].content }}", False),
    ],
)
def test_whether_the_prompt_ends_inside_reasoning(tmp_path: Path, template: str, opened: bool) -> None:
    assert text_model(tmp_path / "m", template).render(ask("Hi")).reasoning_open is opened


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [902, 900]}, {902, 900}),
        ({"eos_token_id": 900}, {900, 902}),
        # The model's own configuration where generation_config.json is silent; the tokenizer's always.
        ({}, {902}),
        ({"eos_token_id": None}, {902}),
    ],
)
def test_end_tokens(tmp_path: Path, generation: dict[str, Any], expected: set[int]) -> None:
    assert text_model(tmp_path / "m", generation=generation).end_tokens == expected


def test_boundaries_are_prefixes_that_other_prompts_share(tmp_path: Path) -> None:
    model = text_model(tmp_path / "m")
    model.wants_boundaries = True
    system = {"role": "system", "content": "You are terse."}
    first = [system, {"role": "user", "content": "What is the moon?"}]
    later = [*first, {"role": "assistant", "content": "A rock."}, {"role": "user", "content": "Why?"}]
    other = [system, {"role": "user", "content": "Who are you?"}]
    prompt = model.render(ask("", messages=first))
    lead, whole = prompt.boundaries
    assert model.render(ask("", messages=other)).tokens[:lead] == prompt.tokens[:lead]
    assert model.render(ask("", messages=later)).tokens[:whole] == prompt.tokens[:whole]
    # All but the opening of the answer.
    assert model.tokenizer.decode(prompt.tokens[whole:]) == "<|im_start|>assistant\n"
    assert model.tokenizer.decode(prompt.tokens[lead:]).startswith("What is")
    # One that begins with the user shares its opening.
    assert all(cut > 0 for cut in model.render(ask("Hi")).boundaries)


@pytest_asyncio.fixture
async def harmony(tmp_path: Path) -> AsyncIterator[tuple[EngineProcess, int, int]]:
    """A gpt-oss model (random weights) with Harmony's end tokens: its `<|return|>` and `<|end_of_text|>`."""
    folder = make_random_model(tmp_path / "gpt-oss", "sliding-window")
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    core.add_special_tokens([AddedToken(text) for text in ("<|return|>", "<|call|>", "<|end_of_text|>")])
    core.save(str(folder / "tokenizer.json"))
    ends = [core.token_to_id(text) for text in ("<|return|>", "<|call|>", "<|end_of_text|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    spec = ModelSpec("gpt-oss-tiny", Family.GPT_OSS, 4096, path=folder)
    engine = EngineProcess(EngineSettings(models=(spec,), slots=2, forcing=False))
    await engine.start()
    await engine.wait_ready()
    yield engine, ends[0], ends[2]
    await engine.aclose()


@pytest.mark.asyncio
async def test_harmony_s_own_end_tokens_are_reported_others_are_not(
    harmony: tuple[EngineProcess, int, int],
) -> None:
    engine, ends_message, ends_text = harmony

    async def ending_with(token: int) -> tuple[list[int], str, int]:
        sampling = SamplingParams(temperature=0.0, logit_bias={token: 1000.0})
        outcome = await run(engine, ask("Hi", model="gpt-oss-tiny", sampling=sampling))
        assert outcome.finished.cause is StopCause.STOP
        return outcome.ids, outcome.text, outcome.finished.generated

    assert await ending_with(ends_message) == ([ends_message], "<|return|>", 1)
    assert await ending_with(ends_text) == ([], "", 1)
