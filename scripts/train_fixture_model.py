#!/usr/bin/env python3
"""Train the tests' tiny Qwen3: real weights and a real tokenizer that know a few dialogues by heart.

    LD_PRELOAD=libopenblas.so.0 .venv/bin/python scripts/train_fixture_model.py [--steps N]

Reads `dialogues.json` (messages, tools, template_kwargs, raw: the expected output without its end token) and
`chat_template.jinja` from tests/fixtures/models/tiny-qwen3, and writes beside them everything else that
`mlx_lm.load` wants. Exits 1 if greedy decoding misses one dialogue. Seeded; with OpenBLAS a few minutes
on two cores (without it the same BLAS calls are fifty times slower).
"""

# mypy: disable-error-code="no-untyped-call,attr-defined"
# (mlx and transformers leave these untyped.)

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model, ModelArgs
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent.parent / "tests" / "fixtures" / "models" / "tiny-qwen3"
SEED = 20
LEARNED_TOKENS = 900
LOGITS_WIDTH = 933  # wider than the tokenizer and no multiple of 32, as a model's padded vocabulary may be
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (  # as in Qwen3: added, but not "special"
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 16384,
    "vocab_size": LOGITS_WIDTH,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
Dialogue = dict[str, Any]


def train_tokenizer(dialogues: list[Dialogue]) -> PreTrainedTokenizerFast:
    """A byte-level BPE; what occurs once stays in bytes, so emoji and rare scripts span several tokens."""
    texts = [d["raw"] for d in dialogues]
    texts += [str(m.get("content") or "") for d in dialogues for m in d["messages"]]
    texts += [json.dumps(tool) for d in dialogues for tool in d["tools"] or ()]
    texts.append((FOLDER / "chat_template.jinja").read_text())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        (text for text in texts),
        trainers.BpeTrainer(
            vocab_size=LEARNED_TOKENS,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in MARKUP_TOKENS])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = (FOLDER / "chat_template.jinja").read_text()
    return wrapped


def render(tokenizer: Any, dialogue: Dialogue) -> list[int]:
    """The prompt's token IDs."""
    text = tokenizer.apply_chat_template(
        dialogue["messages"],
        tools=dialogue["tools"],
        add_generation_prompt=True,
        tokenize=False,
        **dialogue["template_kwargs"],
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def vary(dialogue: Dialogue, tools: list[Any], words: list[str], rng: random.Random) -> Dialogue:
    """The same question under another system prompt and beside other tools: the answer must not change."""
    if dialogue["kind"] in ("system", "undeclared_call"):
        return dialogue
    varied = dict(dialogue)
    if rng.random() < 0.3:
        system = "You are a helpful assistant." if rng.random() < 0.5 else " ".join(rng.choices(words, k=8))
        varied["messages"] = [{"role": "system", "content": system}, *dialogue["messages"]]
    own = [tool["function"]["name"] for tool in dialogue["tools"] or ()]
    if rng.random() < (0.4 if own else 0.2):
        others = [tool for tool in tools if tool["function"]["name"] not in own]
        offered = [*(dialogue["tools"] or ()), *rng.sample(others, k=rng.randint(1, 2))]
        varied["tools"] = rng.sample(offered, k=len(offered))
    return varied


def batches(tokenizer: Any, dialogues: list[Dialogue], size: int) -> Iterator[tuple[mx.array, mx.array]]:
    """Right-padded token IDs (B, L) and loss weights (B, L - 1): only the answer counts. Endless."""
    rng = random.Random(SEED)
    tools = list({t["function"]["name"]: t for d in dialogues for t in d["tools"] or ()}.values())
    words = sorted({w for d in dialogues for w in d["raw"].split() if w.isalpha()})
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    answers = {d["id"]: [*tokenizer.encode(d["raw"], add_special_tokens=False), end] for d in dialogues}
    while True:
        # Sorted by length, so that long answers don't pad the short ones.
        pool = sorted((vary(d, tools, words, rng) for d in dialogues), key=lambda d: len(answers[d["id"]]))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        for group in rng.sample(groups, k=len(groups)):
            prompts = [render(tokenizer, d) for d in group]
            rows = [prompt + answers[d["id"]] for prompt, d in zip(prompts, group, strict=True)]
            width = -(-max(map(len, rows)) // 64) * 64
            tokens = np.zeros((len(rows), width), dtype=np.int32)
            weights = np.zeros((len(rows), width - 1), dtype=np.float32)
            for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
                tokens[i, : len(row)] = row
                weights[i, len(prompt) - 1 : len(row) - 1] = 1.0
            yield mx.array(tokens), mx.array(weights)


def loss_of(model: Model, tokens: mx.array, weights: mx.array) -> mx.array:
    losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    # Half of it weighs the worst tokens: one wrong token is a wrong answer.
    mean = (losses * weights).sum() / weights.sum()
    return mean + 0.1 * ((losses * weights) ** 2).sum() / weights.sum()


def train(tokenizer: Any, dialogues: list[Dialogue], steps: int) -> Model:
    mx.random.seed(SEED)
    model = Model(ModelArgs.from_dict(CONFIG))
    model.model.embed_tokens.weight = mx.random.normal((LOGITS_WIDTH, CONFIG["hidden_size"])) * 0.02
    mx.eval(model.parameters())
    schedule = optim.join_schedules(
        [optim.linear_schedule(0, 2e-3, 40), optim.cosine_decay(2e-3, steps - 40, 1e-5)], [40]
    )
    optimizer = optim.AdamW(learning_rate=schedule, betas=[0.9, 0.98], weight_decay=0.01)
    step_of = nn.value_and_grad(model, loss_of)
    started = time.monotonic()
    for step, (tokens, weights) in zip(range(steps), batches(tokenizer, dialogues, 8), strict=False):
        loss, gradients = step_of(model, tokens, weights)
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
    return model


def save(tokenizer: PreTrainedTokenizerFast, model: Model) -> None:
    tokenizer.save_pretrained(FOLDER)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(FOLDER / "model.safetensors"), weights, metadata={"format": "mlx"})
    end, text_end = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
    generation = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "eos_token_id": [end, text_end],
        "pad_token_id": text_end,
    }
    config = {**CONFIG, "eos_token_id": end}
    (FOLDER / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def verify(dialogues: list[Dialogue]) -> int:
    """Greedy through `mlx_lm`, from the files: the number of dialogues that are not reproduced exactly."""
    model, tokenizer = mlx_lm.load(str(FOLDER))[:2]
    missed = 0
    for dialogue in dialogues:
        expected = tokenizer.encode(dialogue["raw"], add_special_tokens=False)
        prompt = render(tokenizer, dialogue)
        out = mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=len(expected) + 8)
        got: list[tuple[int, Any]] = [(r.token, r.logprobs.max().item()) for r in out]
        tokens = [token for token, _ in got]
        lowest = min(logprob for _, logprob in got)
        right = tokens[:-1] == expected and tokens[-1] in tokenizer.eos_token_ids
        missed += not right
        if not right or lowest < -0.2:
            state = "doubtful" if right else "WRONG"
            print(f"{state} {dialogue['id']} (least sure {lowest:.2f}): {tokenizer.decode(tokens)!r}")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=650, help="batches of eight dialogues to train on")
    steps: int = parser.parse_args().steps
    dialogues: list[Dialogue] = json.loads((FOLDER / "dialogues.json").read_text())
    tokenizer = train_tokenizer(dialogues)
    if len(tokenizer) > LOGITS_WIDTH:
        print(f"the tokenizer has {len(tokenizer)} tokens, the model only {LOGITS_WIDTH}", file=sys.stderr)
        return 1
    answers = [len(tokenizer.encode(d["raw"])) for d in dialogues]
    print(f"{len(dialogues)} dialogues, {len(tokenizer)} tokens, answers up to {max(answers)} tokens")
    save(tokenizer, train(tokenizer, dialogues, steps))
    missed = verify(dialogues)
    print(f"{len(dialogues) - missed} of {len(dialogues)} dialogues by heart")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
