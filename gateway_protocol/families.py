"""Model families: which markup a model writes, chosen from its ID and never from its output.

The table is docs/contract.md, "Model families".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Family(StrEnum):
    QWEN = "qwen"
    GPT_OSS = "gpt_oss"
    LLAMA = "llama"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """`first_turn`: its tool calls are parsed; `multi_turn`: tool history is accepted.

    `think`: the markers its models usually write reasoning in, for a model that nothing else is known of.
    """

    id_contains: tuple[str, ...]
    first_turn: bool
    multi_turn: bool
    think: tuple[str, str] | None = None


_THINK = ("<think>", "</think>")


FAMILIES: Mapping[Family, FamilyTraits] = MappingProxyType(
    {
        Family.QWEN: FamilyTraits(("qwen2.5", "qwen3"), True, True, _THINK),
        Family.GPT_OSS: FamilyTraits(("gpt-oss",), True, False),
        Family.LLAMA: FamilyTraits(("llama-3.3",), True, True),
        Family.NONE: FamilyTraits((), False, False, _THINK),
    }
)


def family_of(model_id: str) -> Family:
    """The family of a model ID: case-insensitive, first match wins."""
    lowered = model_id.lower()
    for family, traits in FAMILIES.items():
        if any(part in lowered for part in traits.id_contains):
            return family
    return Family.NONE
