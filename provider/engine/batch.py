"""mlx-lm's continuous batch with a step of its own: with grammars, and without what nobody asked for.

A step of mlx-lm's builds the next forward pass, submits it together with the sampling, and only then reads
the token before. A grammar must see that token before the next one is sampled. So here the forward pass is
submitted first; while the device works on it, one read fetches all rows' tokens, the matchers move on and
write their masks into one array, and one compiled operation applies it. Rows that draw at random are drawn
for together, not one by one, and logits become log-probabilities only for rows whose buyers want to see them.

A row's grammar travels with its logits processors, since mlx-lm moves those through prefill, joins, splits
and removals. What is replaced here was read in mlx-lm 0.32.2; tests hold its source to the hash read then.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch

from provider.engine.bitmasks import Words, mask_words
from provider.engine.drawing import Greedy, draw
from provider.engine.mask_kernel import chosen
from provider.engine.masks import GrammarRow


class MaskedGenerationBatch(GenerationBatch):
    """`GenerationBatch` whose `_step` knows `drawing`'s samplers, and `GrammarRow`s among the processors."""

    def _step(self) -> tuple[list[int], list[mx.array]]:
        inputs: Any = self._next_tokens
        self._current_tokens = inputs
        self._current_logprobs = self._next_logprobs
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        masks: Words | None = None
        if any(_grammar_of(processors) for processors in self.logits_processors or ()):
            mx.async_eval(logits)
            # Waits for the step before, not for this one.
            masks = self._masks(inputs.tolist(), logits.shape[-1])

        logits, contexts = self._processed(inputs, logits)
        if masks is not None:
            apply_masks, _ = chosen()
            logits = apply_masks(logits, mx.array(masks))
        own: Any = self.samplers or ()
        samplers: Any = [self.fallback_sampler if sampler is None else sampler for sampler in own]
        self._next_tokens: Any = draw(samplers, logits)
        self._next_logprobs = _logprobs([sampler.reported for sampler in samplers], logits)
        mx.async_eval(self._next_tokens, self._next_logprobs, contexts)
        mx.eval(self._current_logprobs)
        tokens: list[int] = inputs.tolist()
        for row_tokens, token in zip(self.tokens, tokens, strict=True):
            row_tokens.append(token)
        return tokens, self._current_logprobs

    def _processed(self, inputs: mx.array, logits: mx.array) -> tuple[mx.array, list[mx.array]]:
        """Penalties and bias of the rows that have any; before the mask, which nothing may lift."""
        contexts: list[mx.array] = []
        changers = [
            [one for one in processors or () if not isinstance(one, GrammarRow)]
            for processors in self.logits_processors or ()
        ]
        if not any(changers):
            return logits, contexts
        rows: list[mx.array] = []
        for index, own in enumerate(changers):
            row = logits[index : index + 1]
            if own:
                context = self._token_context[index].update_and_fetch(inputs[index : index + 1])
                contexts.append(context)
                for processor in own:
                    row = processor(context, row)
            rows.append(row)
        return mx.concatenate(rows, axis=0), contexts

    def _masks(self, tokens: Sequence[int], width: int) -> Words | None:
        """Move each row's grammar on and gather the masks; `None` if no row is restricted just now."""
        masks: Words | None = None
        for index, processors in enumerate(self.logits_processors or ()):
            grammar = _grammar_of(processors)
            if grammar is None:
                continue
            grammar.begin(tokens[index])
            if grammar.restricts:
                if masks is None:
                    masks = np.full((len(tokens), mask_words(width)), 0xFFFFFFFF, dtype=np.uint32)
                grammar.mask(masks[index])
        return masks


def _logprobs(reported: Sequence[bool], logits: mx.array) -> list[mx.array]:
    """One array for each row, empty where nobody asked: normalising costs about as much as choosing."""
    nothing = mx.zeros((0,))
    if not any(reported):
        return [nothing] * len(reported)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return [row if asked else nothing for row, asked in zip(logprobs, reported, strict=True)]


def _grammar_of(processors: Sequence[Any] | None) -> GrammarRow | None:
    """The row's grammar: by convention the last of its processors."""
    last = processors[-1] if processors else None
    return last if isinstance(last, GrammarRow) else None


class MaskedPromptBatch(PromptProcessingBatch):
    """Hands its rows to a `MaskedGenerationBatch`, whose first step samples the first token."""

    def split(self, indices: list[int]) -> PromptProcessingBatch:
        """mlx-lm's copies every row's cache and picks from both; where all move on, none need be copied."""
        if len(indices) < len(self.uids):
            left: PromptProcessingBatch = super().split(indices)
            return left
        moved = copy.copy(self)
        self.uids, self.prompt_cache, self.tokens, self.stop_sequences = [], [], [], []
        self.samplers, self.logits_processors, self.max_tokens = [], [], []
        return moved

    def generate(self, tokens: list[list[int]]) -> MaskedGenerationBatch:
        if any(len(row) > 1 for row in tokens):
            self.prompt([row[:-1] for row in tokens])
        generation = MaskedGenerationBatch(
            self.model,
            self.uids,
            mx.array([row[-1] for row in tokens]),
            self.prompt_cache,
            self.tokens,
            self.samplers,
            self.fallback_sampler,
            self.logits_processors,
            self.stop_sequences,
            self.max_tokens,
        )
        self.uids, self.prompt_cache, self.tokens = [], [], []
        self.samplers, self.logits_processors, self.max_tokens = [], [], []
        return generation


class MaskedBatchGenerator(BatchGenerator):
    """mlx-lm's `BatchGenerator`; give a row's grammar as the last of its `logits_processors`.

    `samplers` are `drawing`'s; a row without one is greedy, its log-probabilities reported.
    """

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, sampler=Greedy(reported=True), **settings)
        self._prompt_batch = MaskedPromptBatch.empty(
            self.model, self.sampler, prefill_step_size=self.prefill_step_size
        )
        self._generation_batch = MaskedGenerationBatch.empty(self.model, self.sampler)
