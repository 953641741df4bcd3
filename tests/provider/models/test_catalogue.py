from __future__ import annotations

import pytest

from gateway_protocol.families import Family
from provider.models.catalogue import DEMO_MODEL, catalogue

WITH_TOOL_CALLS = {
    "Qwen3-Coder-30B-A3B-Instruct-4bit": Family.QWEN,
    "Qwen2.5-Coder-32B-Instruct-4bit": Family.QWEN,
    "Qwen3-8B-4bit": Family.QWEN,
    "Qwen3-32B-4bit": Family.QWEN,
    "Qwen3-30B-A3B-Instruct-2507-4bit": Family.QWEN,
    "Qwen3.5-27B-4bit": Family.QWEN,
    "Qwen3.5-35B-A3B-4bit": Family.QWEN,
    "Qwen3.6-27B-4bit": Family.QWEN,
    "Qwen3.6-35B-A3B-4bit": Family.QWEN,
    "Qwen3.8-27B-4bit": Family.QWEN,
    "gpt-oss-20b-MXFP4-Q8": Family.GPT_OSS,
    "gpt-oss-120b-4bit": Family.GPT_OSS,
}
WITHOUT = [
    "Meta-Llama-3.1-8B-Instruct-4bit",
    "Llama-3.2-3B-Instruct-4bit",
    "gemma-4-26b-a4b-it-4bit",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-4bit",
    "GLM-4.5-Air-4bit",
]


def test_it_holds_the_contracts_models_and_the_demo_model() -> None:
    expected = {DEMO_MODEL, *(f"mlx-community/{name}" for name in [*WITH_TOOL_CALLS, *WITHOUT])}
    assert set(catalogue()) == expected


@pytest.mark.parametrize(("name", "family"), [*WITH_TOOL_CALLS.items(), *((n, Family.NONE) for n in WITHOUT)])
def test_the_family_is_the_ids(name: str, family: Family) -> None:
    assert catalogue()[f"mlx-community/{name}"].family is family


def test_the_demo_model_comes_from_a_pinned_package() -> None:
    entry = catalogue()[DEMO_MODEL]
    assert entry.wheel is not None
    assert "==" in entry.wheel.requirement
    assert entry.family is Family.QWEN
