"""The converter against a reference: the same weights through mlx-lm's llama with GGUF's own rotation."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import mlx.core as mx
import pytest

from provider.engine.gguf import convert
from provider.engine.model_folder import check_folder
from provider.errors import ModelError
from tests.provider.models.gguf_files import HEADS, HIDDEN, LAYERS, TOKENS, write_gguf

TEMPLATE = Path(__file__).parents[3] / "configs" / "demo_chat_template.jinja"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


def test_the_folder_computes_what_the_file_computes(tmp_path: Path, folder: Path) -> None:
    arrays = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", folder, TEMPLATE)
    check_folder("tiny", folder)

    llama = importlib.import_module("mlx_lm.models.llama")
    config = json.loads((folder / "config.json").read_text())
    converted = llama.Model(llama.ModelArgs.from_dict(config))
    converted.load_weights(str(folder / "model.safetensors"))
    # GGUF's rotation pairs neighbours, which mlx calls traditional: no row is moved for it.
    reference = llama.Model(llama.ModelArgs.from_dict({**config, "rope_traditional": True}))
    reference.load_weights(list(_named(arrays).items()))

    tokens = mx.array([[5, 9, 30, 77, 200, 2]])
    assert mx.allclose(converted(tokens), reference(tokens), atol=1e-4).item()
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] == 128


def _named(arrays: dict[str, mx.array]) -> dict[str, mx.array]:
    named = {
        "model.embed_tokens.weight": arrays["token_embd.weight"],
        "model.norm.weight": arrays["output_norm.weight"],
    }
    for layer in range(LAYERS):
        for theirs, ours in (
            ("attn_norm", "input_layernorm"),
            ("attn_q", "self_attn.q_proj"),
            ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ):
            named[f"model.layers.{layer}.{ours}.weight"] = arrays[f"blk.{layer}.{theirs}.weight"]
    assert HIDDEN % HEADS == 0
    return named


def test_the_tokenizer_is_the_files(tmp_path: Path, folder: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", folder, TEMPLATE)
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello<|im_end|>").tokens == ["hel", "l", "o", "<|im_end|>"]
    text = "Ünïcode 123 😀\n\n  indented <tag>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == len(TOKENS)


@pytest.mark.parametrize(
    "changes",
    [{"general.architecture": "bert"}, {"tokenizer.ggml.model": "llama"}, {"tokenizer.ggml.pre": "other"}],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, folder: Path, changes: dict[str, str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        convert(tmp_path / "tiny.gguf", folder, TEMPLATE)
