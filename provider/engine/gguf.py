"""Make an mlx-lm model folder of a llama-architecture GGUF file with a byte-level BPE tokenizer.

Run as a process of its own (`python -m provider.engine.gguf FILE FOLDER TEMPLATE`): MLX stays out of the
caller. Weights become float32, which is the fastest type on MLX's CPU path and exact for any GGUF
quantisation. Facts of the format: the GGUF specification (ggml-org/ggml, docs/gguf.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from provider.errors import ModelError

# GGUF token types that a tokenizer treats as one unbreakable token.
_CONTROL, _USER_DEFINED = 3, 4

# GGUF's names of a llama block's tensors → mlx-lm's.
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# What the pre-tokenizer's GGUF name stands for; a file with another name isn't converted.
_PRE_TOKENIZERS: Mapping[str, list[dict[str, Any]]] = {
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ]
}


def convert(source: Path, folder: Path, template: Path) -> None:
    """Write config, weights, tokenizer, chat template and generation defaults into `folder`, which exists."""
    # The stubs name every result `load` can have; of a GGUF file it is these two.
    loaded: Any = mx.load(str(source), return_metadata=True)
    arrays: dict[str, mx.array] = loaded[0]
    metadata: dict[str, Any] = loaded[1]
    facts = {
        key: value.item() if isinstance(value, mx.array) and value.size == 1 else value
        for key, value in metadata.items()
    }
    if facts["general.architecture"] != "llama" or facts["tokenizer.ggml.model"] != "gpt2":
        raise ModelError(
            f"{source.name}: only llama weights with a byte-level BPE tokenizer can be converted"
        )
    if facts["tokenizer.ggml.pre"] not in _PRE_TOKENIZERS:
        raise ModelError(f"{source.name}: unknown pre-tokenizer {facts['tokenizer.ggml.pre']}")
    config = _config(facts, tied="output.weight" not in arrays)
    weights = dict(_weights(arrays, config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", _generation_config(config))
    _write(folder / "tokenizer.json", _tokenizer(facts))
    _write(folder / "tokenizer_config.json", _tokenizer_config(facts))
    (folder / "chat_template.jinja").write_text(template.read_text(encoding="utf-8"), encoding="utf-8")


def _config(facts: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": facts["llama.embedding_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "max_position_embeddings": facts["llama.context_length"],
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def _generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    # The model's card recommends temperature 0.2 and top_p 0.9.
    return {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
    }


def _weights(arrays: Mapping[str, mx.array], config: Mapping[str, Any]) -> Iterator[tuple[str, mx.array]]:
    for name, array in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind != "weight":
            continue
        scales = arrays.get(f"{stem}.scales")
        if scales is not None:
            biases = arrays[f"{stem}.biases"].astype(mx.float32)
            bits = array.shape[-1] * 32 // (scales.shape[-1] * 32)
            array = mx.dequantize(array, scales.astype(mx.float32), biases, group_size=32, bits=bits)
        array = array.astype(mx.float32)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if part in ("attn_q", "attn_k"):
                heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
                array = _half_rotation(array, heads)
            yield f"model.layers.{layer}.{_BLOCK_NAMES[part]}.weight", array
        else:
            yield f"{_NAMES[stem]}.weight", array


def _half_rotation(array: mx.array, heads: int) -> mx.array:
    """GGUF keeps a rotated pair in neighbouring rows of a head; mlx-lm's llama has them half a head apart."""
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return mx.contiguous(pairs.swapaxes(1, 2).reshape(rows, columns))


def _special(facts: Mapping[str, Any]) -> list[tuple[int, str]]:
    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"].tolist()
    return [(i, tokens[i]) for i, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED)]


def _tokenizer(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`tokenizer.json`, the format of the `tokenizers` library."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in _special(facts)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": _PRE_TOKENIZERS[facts["tokenizer.ggml.pre"]],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: i for i, text in enumerate(facts["tokenizer.ggml.tokens"])},
            "merges": facts["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    named = {
        name: tokens[facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": facts["llama.context_length"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [text for _, text in _special(facts)],
        **named,
    }


def _write(file: Path, document: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(*(Path(argument) for argument in sys.argv[1:4]))
