"""A model in memory and its running batch; rows join and leave at any step. For the step thread only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, make_prompt_cache

from provider.engine.base import EngineEvent, Failed, Finished, StopCause, TokenLogprob
from provider.engine.batch import MaskedBatchGenerator
from provider.engine.drawing import sampler_for
from provider.engine.kv_cost import KvCost
from provider.engine.prompt import TextModel
from provider.engine.prompt_cache import PromptCache
from provider.engine.row import PreparedJob, Row
from provider.engine.sampling import processors_for
from provider.engine.spec import PREFILL_ALONE

_LEAST_PIECE: Final = 32
_PROMPTS_AT_ONCE: Final = 8
_IMPOSSIBLE: Final = -9999.0  # OpenAI's figure for it


@dataclass(slots=True)
class _Held:
    """A row taken out of the batch for a while: its cache, the tokens in it, the token drawn but not sent."""

    cache: list[Any]
    tokens: list[int]
    next_token: int
    next_logprobs: mx.array


class ResidentModel:
    """`step` advances every row by one token or one piece of its prompt."""

    def __init__(
        self,
        text: TextModel,
        model: Any,
        cost: KvCost,
        prompts: PromptCache,
        *,
        slots: int,
        prefill_step: int,
    ) -> None:
        self.text = text
        self.model = model
        self.cost = cost
        self.weight_bytes = sum(weight.nbytes for _, weight in _weights(model))
        self.used_at = time.monotonic()
        self._prompts = prompts
        self._slots = slots
        self._prefill_step = prefill_step
        self._rows: dict[int, Row] = {}
        self._held: dict[int, tuple[Row, _Held]] = {}
        self._batch = self._new_batch()
        text.wants_boundaries = not all(_always_trims(part) for part in make_prompt_cache(model))

    def _new_batch(self) -> Any:
        return MaskedBatchGenerator(
            self.model,
            stop_tokens=[[token] for token in sorted(self.text.end_tokens)],
            completion_batch_size=self._slots,
            prefill_batch_size=min(self._slots, _PROMPTS_AT_ONCE),
            prefill_step_size=PREFILL_ALONE["gpu"],
        )

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._rows)

    def rows(self) -> list[Row]:
        """Every job that holds a slot, also those held back."""
        return [*self._rows.values(), *(row for row, _ in self._held.values())]

    def lengths(self) -> list[int]:
        """What each row may come to, prompt and answer, in tokens."""
        return [len(row.prepared.prompt) + row.prepared.limit for row in self.rows()]

    def kv_bytes(self) -> int:
        """What the rows' keys and values take now."""
        held = sum(int(part.nbytes) for _, kept in self._held.values() for part in kept.cache)
        return int(self._batch.prompt_cache_nbytes) + held

    def add(self, prepared: PreparedJob) -> int:
        """Take a job into the batch; returns how many tokens of its prompt need not be computed."""
        row = Row(
            prepared,
            detokenizer=self.text.vocabulary.detokenizer(),
            sampler=sampler_for(prepared.sampling, reported=prepared.wants_logprobs),
            processors=list(processors_for(prepared.sampling, len(prepared.prompt))),
        )
        if prepared.grammar is not None:
            row.grammar = prepared.grammar.row()
            row.processors.append(row.grammar)
        cache, cached = None, 0
        if (key := prepared.cache_key) is not None:
            cache, cached = self._prompts.find(key, prepared.prompt)
        self._insert(row, prepared.prompt[cached:], prepared.prompt[:cached], cache)
        return cached

    def _insert(self, row: Row, tokens: list[int], already: list[int], cache: list[Any] | None) -> None:
        cuts = [cut - len(already) for cut in row.prepared.boundaries]
        edges = [0, *(cut for cut in cuts if 0 < cut < len(tokens)), len(tokens)]
        (row.uid,) = self._batch.insert_segments(
            [[tokens[start:end] for start, end in pairwise(edges)]],
            max_tokens=[row.prepared.limit - row.generated],
            caches=[cache],
            all_tokens=[already],
            samplers=[row.sampler],
            logits_processors=[row.processors],
        )
        self._rows[row.uid] = row

    def remove(self, row: Row) -> None:
        """Take a row out for good, wherever it is."""
        _, held = self._held.pop(row.job.serial, (row, None))
        if held is not None:
            self._keep(row, held.tokens, held.cache)
        elif row.uid is not None and self._rows.pop(row.uid, None) is not None:
            # A client that leaves often comes back with the same prompt: an agent after its tool call, a
            # retry after a time-out.
            computed = self._batch.remove([row.uid], return_prompt_caches=row.prepared.cache_key is not None)
            for cache, tokens in computed.values():
                self._keep(row, tokens, cache)

    def _keep(self, row: Row, tokens: list[int] | None, cache: list[Any] | None) -> None:
        key = row.prepared.cache_key
        if key is not None and tokens and cache is not None:
            self._prompts.store(key, tokens, cache)

    def step(self) -> list[tuple[Row, EngineEvent | None]]:
        """One turn of the batch; the rows that got a token, each with its last event if this was its end."""
        self.used_at = time.monotonic()
        self._batch.prefill_step_size = self._prefill_piece()
        progress, responses = self._batch.next()
        self._keep_boundaries(
            [part.uid for part in progress if part.end_of_segment and not part.end_of_prompt]
        )
        advanced: list[tuple[Row, EngineEvent | None]] = []
        for response in responses:
            row = self._rows[response.uid]
            end = self._take(row, response.token, response.logprobs, response.finish_reason)
            if end is not None:
                del self._rows[response.uid]
                self._keep(row, response.all_tokens, response.prompt_cache)
            if row.grammar is not None and row.grammar.failure is not None:
                # A grammar that fails asks for the end token: the job must not look well ended.
                self.remove(row)
                end = Failed("grammar_failed", row.grammar.failure)
            advanced.append((row, end))
        return advanced

    def _prefill_piece(self) -> int:
        """Tokens of each prompt in the next step: a long prompt must not stall the streams that run."""
        decoding = len(self._batch._generation_batch)
        prompts = min(self._slots, _PROMPTS_AT_ONCE, len(self._rows) - decoding)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        alone = PREFILL_ALONE["cpu" if on_cpu else "gpu"]
        # Half a chunk and the streams' own step take less time together than a whole one.
        piece = min(self._prefill_step, alone // 2) if decoding else alone
        return max(_LEAST_PIECE, piece // max(1, prompts))

    def _keep_boundaries(self, uids: list[int]) -> None:
        wanted = [uid for uid in uids if self._rows[uid].prepared.boundaries]
        for uid, (cache, tokens) in self._batch.extract_cache(wanted).items():
            if len(tokens) in self._rows[uid].prepared.boundaries:
                self._keep(self._rows[uid], list(tokens), cache)

    def _take(self, row: Row, token: int, logprobs: mx.array, finish: str | None) -> EngineEvent | None:
        row.generated += 1
        if finish != "stop" or token in self.text.reported_ends:
            row.texts.append(row.detokenizer.feed(token))
            row.ids.append(token)
            if row.wants_logprobs:
                row.logprobs.append(self._logprobs(row, token, logprobs))
        if finish is None:
            return None
        cause = StopCause.STOP if finish == "stop" else StopCause.LENGTH
        return Finished(cause, row.generated, row.job.steps_after_cancel)

    def _logprobs(
        self, row: Row, token: int, logprobs: mx.array
    ) -> tuple[TokenLogprob, tuple[TokenLogprob, ...]]:
        values = as_float32(logprobs)
        count = row.job.request.sampling.top_logprobs or 0
        if count == 0:
            return self._named(token, float(values[token])), ()
        best = np.argpartition(-values, min(count, values.size - 1))[:count]
        best = best[np.argsort(-values[best], kind="stable")]
        top = tuple(self._named(int(one), float(values[one])) for one in best)
        return self._named(token, float(values[token])), top

    def _named(self, token: int, logprob: float) -> TokenLogprob:
        raw = self.text.vocabulary.token_bytes(token)
        # What a grammar or a bias rules out has probability 0, and JSON has no word for its logarithm.
        return TokenLogprob(raw.decode("utf-8", "replace"), raw, max(logprob, _IMPOSSIBLE))

    # --- holding back -----------------------------------------------------------------------------

    def hold(self, row: Row) -> None:
        """Take a decoding row out of the batch, to go on later exactly where it was.

        A row still in prefill is left there: its prompt is computed in any case.
        """
        batch = self._batch._generation_batch
        if row.uid is None or row.uid not in batch.uids:
            return
        # The batch runs one token ahead: that token was drawn and must not be drawn again.
        place = batch.uids.index(row.uid)
        next_token, next_logprobs = batch._next_tokens[place], batch._next_logprobs[place]
        cache, tokens = self._batch.remove([row.uid], return_prompt_caches=True)[row.uid]
        mx.eval([part.state for part in cache], next_token, next_logprobs)
        del self._rows[row.uid]
        row.uid = None
        self._held[row.job.serial] = (row, _Held(cache, tokens, int(next_token.item()), next_logprobs))

    def release(self, row: Row) -> EngineEvent | None:
        """Put a held row back; returns its last event if the token it had drawn was its last."""
        held = self._held.pop(row.job.serial, None)
        if held is None:
            return None
        _, kept = held
        finish = None
        if kept.next_token in self.text.end_tokens:
            finish = "stop"
        elif row.generated + 1 >= row.prepared.limit:
            finish = "length"
        end = self._take(row, kept.next_token, kept.next_logprobs, finish)
        if end is None:
            self._insert(row, [kept.next_token], kept.tokens, kept.cache)
        else:
            self._keep(row, kept.tokens, kept.cache)
        return end

    def reset(self) -> list[Row]:
        """Start a new batch: a failed step leaves the old one in an unknown state. Returns the lost rows."""
        lost = self.rows()
        self._rows.clear()
        self._held.clear()
        self._batch.close()
        self._batch = self._new_batch()
        mx.clear_cache()
        return lost

    def close(self) -> None:
        self._batch.close()


def _weights(model: Any) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))


def _always_trims(part: Any) -> bool:
    """Whether a layer's cache can be cut back however long it has grown."""
    if isinstance(part, CacheList):
        return all(_always_trims(inner) for inner in part.caches)
    return isinstance(part, KVCache | QuantizedKVCache)


def as_float32(array: mx.array) -> np.ndarray[Any, np.dtype[np.float32]]:
    """An evaluated array as numpy floats, without asking the device, which is busy with the next step."""
    if array.dtype == mx.bfloat16:
        # numpy has no bfloat16: it is the upper half of a float32.
        upper = np.frombuffer(memoryview(cast(Any, array)).cast("B"), dtype=np.uint16)
        return (upper.astype(np.uint32) << 16).view(np.float32)
    return np.array(array, copy=False).astype(np.float32, copy=False)
