"""Tiny models with random weights, of kinds whose cache can't be cut back, on the fixture's tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes

from tests.provider.engine.driving import FIXTURE

_SHARED = {
    "vocab_size": 933,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    # Every second layer sees a window of 32 tokens only.
    "sliding-window": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 32,
        "rope_theta": 10000,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    # Three recurrent layers to one with attention.
    "hybrid": {
        "model_type": "qwen3_5",
        "num_hidden_layers": 4,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "full_attention_interval": 4,
    },
}


def make_random_model(folder: Path, kind: str) -> Path:
    """Write an mlx-lm folder; the same weights each time."""
    config = {**_SHARED, **CONFIGS[kind]}
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(FIXTURE / name, folder / name)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    mx.random.seed(20)
    weights = tree_map(
        lambda weight: mx.random.normal(weight.shape) * 0.15 if weight.ndim > 1 else weight,
        model.parameters(),
    )
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(weights)))
    # No end token: what a random model says has no end but max_tokens.
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 900}))
    return folder
