"""Vocabularies to hold grammars against: markup as tokens and as text, small ones and the real ones.

The small ones are the tiny model's own BPE with other added tokens. The real ones are made from what public
packages carry (fetched by pip and npm into a cache on first use): Qwen's ranks from the wheel `dashscope`,
o200k's from npm's `js-tiktoken`, SmolLM2's tokenizer from the demo model's wheel.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from provider.engine.grammars import open_tokenizer
from provider.models.catalogue import DEMO_MODEL, catalogue
from provider.models.wheel import pull_wheel
from provider.toolcalls.families import HARMONY_TOKENS

TINY = Path(__file__).parents[2] / "fixtures" / "models" / "tiny-qwen3"
CACHE = Path(os.environ.get("MALIBU_TEST_CACHE", Path.home() / ".cache" / "malibu-provider-tests"))
HARMONY = [text for text, _ in HARMONY_TOKENS.values()]
QWEN3_ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
]
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


class Vocabulary:
    """`ids`: of its tokens by text; of the large ones the added tokens alone."""

    def __init__(self, tokenizer: LLTokenizer, ids: dict[str, int]) -> None:
        self.tokenizer = tokenizer
        self.ids = ids
        added = [re.escape(one) for one, token in ids.items() if tokenizer.is_special_token(token)]
        self._added = re.compile(f"({'|'.join(added)})")

    def tokens(self, text: str) -> list[int]:
        """As the model's own tokenizer cuts it: added tokens first, the rest between them."""
        tokens: list[int] = []
        for place, piece in enumerate(self._added.split(text)):
            tokens += [self.ids[piece]] if place % 2 else self.tokenizer.tokenize_str(piece)
        return tokens


def _small(added: Sequence[str], end: Sequence[str]) -> Vocabulary:
    """The tiny model's BPE with just these added tokens, behind its learned ones."""
    document = json.loads((TINY / "tokenizer.json").read_text(encoding="utf-8"))
    like = dict(document["added_tokens"][0])
    learned = {
        token: number
        for token, number in document["model"]["vocab"].items()
        if token not in {one["content"] for one in document["added_tokens"]}
    }
    first = max(learned.values()) + 1
    document["model"]["vocab"] = learned
    document["added_tokens"] = [
        {**like, "id": first + place, "content": text} for place, text in enumerate(added)
    ]
    ids = learned | {text: first + place for place, text in enumerate(added)}
    tokenizer = open_tokenizer(
        json.dumps(document), width=first + len(added) + 7, end_tokens=[ids[text] for text in end]
    )
    return Vocabulary(tokenizer, ids)


@functools.cache
def small_qwen() -> Vocabulary:
    """Markup and thinking are tokens."""
    markup = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    return _small(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *markup], ["<|im_end|>", "<|endoftext|>"])


@functools.cache
def small_text() -> Vocabulary:
    """No markup is a token."""
    return _small(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<|im_end|>"])


@functools.cache
def small_llama() -> Vocabulary:
    return _small(["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"], ["<|eot_id|>"])


@functools.cache
def small_harmony() -> Vocabulary:
    return _small(HARMONY, ["<|return|>", "<|endoftext|>"])


# --- the real ones ---------------------------------------------------------------------------------


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """A file of the cache, fetched if it isn't there yet."""
    file = CACHE / name
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        work = CACHE / f".{name}.{os.getpid()}"
        work.mkdir(exist_ok=True)
        fetch(work)
        os.replace(next(work.iterdir()), file)
        work.rmdir()
    return file


def _pip(requirement: str) -> Callable[[Path], None]:
    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), requirement]
        subprocess.run(command, check=True, capture_output=True, timeout=300)

    return fetch


def _npm(package: str) -> Callable[[Path], None]:
    def fetch(folder: Path) -> None:
        subprocess.run(["npm", "pack", package], cwd=folder, check=True, capture_output=True, timeout=300)

    return fetch


@functools.cache
def qwen() -> Vocabulary:
    """Qwen3's 151,669 tokens under logits of 151,936."""
    wheel = fetched("dashscope.whl", _pip("dashscope==2.0.2"))
    ranks: dict[bytes, int] = {}
    with zipfile.ZipFile(wheel) as archive:
        for line in archive.read("dashscope/resources/qwen.tiktoken").splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    added = {text: len(ranks) + place for place, text in enumerate(QWEN3_ADDED)}
    end = [added["<|im_end|>"], added["<|endoftext|>"]]
    return _tiktoken(ranks, added, _QWEN_PATTERN, end, 151_936)


@functools.cache
def harmony() -> Vocabulary:
    """o200k with Harmony's tokens."""
    package = fetched("js-tiktoken.tgz", _npm("js-tiktoken@1.0.21"))
    with tarfile.open(package) as archive:
        member = archive.extractfile("package/dist/ranks/o200k_base.js")
        assert member is not None
        source = member.read().decode()
    document = json.loads(source.removeprefix("export default ").strip().removesuffix(";"))
    ranks: dict[bytes, int] = {}
    for line in document["bpe_ranks"].split("\n"):
        _, first, *tokens = line.split(" ")
        ranks |= {base64.b64decode(token): int(first) + place for place, token in enumerate(tokens)}
    named = {number: text for number, (text, _) in HARMONY_TOKENS.items()}
    added = {named.get(number, f"<|reserved_{number}|>"): number for number in range(199_998, 201_088)}
    end = [added["<|return|>"], added["<|endoftext|>"]]
    return _tiktoken(ranks, added, document["pat_str"], end, 201_088)


def _tiktoken(
    ranks: dict[bytes, int], added: dict[str, int], pattern: str, end: list[int], width: int
) -> Vocabulary:
    make: Any = LLTokenizer
    tokenizer = make.from_tiktoken(
        encoder=ranks, special_tokens=added, pattern=pattern, eos_token=end, n_vocab=width
    )
    return Vocabulary(tokenizer, added)


def demo_folder() -> Path:
    """The demo model as the product itself makes it."""
    folder = CACHE / DEMO_MODEL
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        pull_wheel(catalogue()[DEMO_MODEL], folder, lambda step: None)
    return folder


@functools.cache
def smollm() -> Vocabulary:
    """SmolLM2's 49,152 tokens, none of them markup."""
    document = (demo_folder() / "tokenizer.json").read_text(encoding="utf-8")
    return Vocabulary(
        open_tokenizer(document, width=49_152, end_tokens=[2]), json.loads(document)["model"]["vocab"]
    )
