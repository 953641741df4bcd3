"""The tiny Qwen3 in tests/fixtures/models still knows its dialogues by heart, alone and in a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx_lm
import pytest
from mlx_lm.generate import BatchGenerator

FOLDER = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen3"
DIALOGUES: list[dict[str, Any]] = json.loads((FOLDER / "dialogues.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    model, tokenizer = mlx_lm.load(str(FOLDER))[:2]
    return model, tokenizer


def prompt_of(tokenizer: Any, dialogue: dict[str, Any]) -> list[int]:
    return tokenizer.apply_chat_template(  # type: ignore[no-any-return]
        dialogue["messages"],
        tools=dialogue["tools"],
        add_generation_prompt=True,
        **dialogue["template_kwargs"],
    )


def test_every_dialogue_comes_out_of_one_batch_word_for_word(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    batch: Any = BatchGenerator(
        model, stop_tokens=[[t] for t in tokenizer.eos_token_ids], completion_batch_size=16
    )
    uids = batch.insert(
        [prompt_of(tokenizer, dialogue) for dialogue in DIALOGUES], max_tokens=[512] * len(DIALOGUES)
    )
    outputs: dict[int, list[int]] = {uid: [] for uid in uids}
    endings: dict[int, str] = {}
    while len(endings) < len(uids):
        for response in batch.next_generated():
            if response.finish_reason is None:
                outputs[response.uid].append(response.token)
            else:
                endings[response.uid] = response.finish_reason
    batch.close()
    for uid, dialogue in zip(uids, DIALOGUES, strict=True):
        assert tokenizer.decode(outputs[uid]) == dialogue["raw"], dialogue["id"]
        assert endings[uid] == "stop"


def test_dialogues_hold_what_the_tests_build_on() -> None:
    assert {d["kind"] for d in DIALOGUES} >= {
        "plain",
        "long",
        "unicode",
        "thinking",
        "hermes_call",
        "xml_call",
        "two_calls",
        "after_tool_result",
    }
    plain = [d for d in DIALOGUES if d["kind"] == "plain"]
    assert len({d["raw"] for d in plain}) == len(plain) >= 16


def test_code_points_are_split_over_tokens_and_logits_are_wider_than_the_tokenizer(
    loaded: tuple[Any, Any],
) -> None:
    model, tokenizer = loaded
    emoji = next(d["raw"] for d in DIALOGUES if d["id"] == "emoji")
    assert len(tokenizer.encode("🎉", add_special_tokens=False)) > 1
    assert tokenizer.decode(tokenizer.encode(emoji, add_special_tokens=False)) == emoji
    assert model.args.vocab_size > len(tokenizer)
    assert model.args.vocab_size % 32 != 0


def test_the_whole_folder_stays_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000
