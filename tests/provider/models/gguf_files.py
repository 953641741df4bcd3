"""A tiny llama GGUF file with random weights, and the same weights as mlx-lm names them."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

HIDDEN, HEADS, KV_HEADS, LAYERS, FEED = 32, 4, 2, 2, 64
# A byte-level BPE vocabulary: three special tokens, the 256 bytes, two merges.
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(moved))]


TOKENS = [*SPECIAL, *_byte_symbols(), "he", "hel"]
MERGES = ["h e", "he l"]


def write_gguf(file: Path, **changes: object) -> dict[str, mx.array]:
    """Write the file; return what the converted folder must hold, by mlx-lm's names."""
    mx.random.seed(0)
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        head = HIDDEN // HEADS
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * head, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * head, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FEED, HIDDEN),
            f"blk.{layer}.ffn_up": (FEED, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FEED),
        }
    arrays = {f"{name}.weight": mx.random.normal(shape) for name, shape in shapes.items()}
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.embedding_length": mx.array(HIDDEN, mx.uint32),
        "llama.block_count": mx.array(LAYERS, mx.uint32),
        "llama.feed_forward_length": mx.array(FEED, mx.uint32),
        "llama.attention.head_count": mx.array(HEADS, mx.uint32),
        "llama.attention.head_count_kv": mx.array(KV_HEADS, mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5, mx.float32),
        "llama.context_length": mx.array(128, mx.uint32),
        "llama.rope.freq_base": mx.array(10000.0, mx.float32),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(TOKENS) - 3), mx.int32),
        "tokenizer.ggml.bos_token_id": mx.array(1, mx.uint32),
        "tokenizer.ggml.eos_token_id": mx.array(2, mx.uint32),
        "tokenizer.ggml.padding_token_id": mx.array(2, mx.uint32),
    }
    mx.save_gguf(str(file), arrays, {**metadata, **changes})
    return arrays
