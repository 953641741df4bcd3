"""How fast this machine is: decode and prefill in tokens per second, measured in under a minute.

What is stored here is what `register.capacity.measured` tells the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from gateway_protocol.messages import Measured
from provider.engine.base import Admitted, Engine, Failed, GenerationRequest, Rejected, SamplingParams, Tokens

FILE_NAME = "measured.json"
BUDGET_S = 55.0
_WARM_UP_TOKENS = 8
_DECODE_TOKENS = 128
_DECODE_S = 12.0
_ENOUGH_TOKENS = 8
_TRIES = 3
_PREFILL_S = 8.0
_PREFILL_TOKENS = (128, 2048)
_WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour", "island", "juniper")


class MeasureError(Exception):
    """It could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class _Timing:
    """One generation. Seconds on the clock; `first`, `rest`: tokens in the first event and after it."""

    prompt_tokens: int
    admitted_at: float
    first_at: float
    last_at: float
    first: int
    rest: int


async def measure(
    engine: Engine, model: str, *, clock: Callable[[], float], at_ms: Callable[[], int]
) -> Measured:
    """Measure `model`, alone on the engine for a good figure. Raises `MeasureError`; cancelled, it stops."""
    try:
        async with asyncio.timeout(BUDGET_S):
            # The first steps of a process compile and touch memory; no later one does.
            await _run(engine, model, "Hello", _WARM_UP_TOKENS, clock)
            decode, probe = await _decode(engine, model, clock)
            prefill = await _prefill(engine, model, clock, decode, probe)
    except TimeoutError:
        raise MeasureError(f"{model} is too slow to be measured in {BUDGET_S:.0f} s") from None
    return Measured(
        model=model,
        decode_tokens_per_s=round(decode, 2),
        prefill_tokens_per_s=round(prefill, 2),
        at_ms=at_ms(),
    )


async def _decode(engine: Engine, model: str, clock: Callable[[], float]) -> tuple[float, float]:
    """Decode tokens/s, and a first guess at prefill from the same short prompts. A model may stop early."""
    tokens, seconds, guesses = 0, 0.0, []
    for attempt in range(_TRIES):
        text = f"Tell a long story about a {_WORDS[attempt]} stone. Take your time and leave nothing out."
        timing = await _run(engine, model, text, _DECODE_TOKENS, clock)
        tokens += timing.rest
        seconds += timing.last_at - timing.first_at
        guesses.append(timing.prompt_tokens / max(timing.first_at - timing.admitted_at, 1e-3))
        if tokens >= _ENOUGH_TOKENS:
            break
    if tokens < _ENOUGH_TOKENS or seconds <= 0:
        raise MeasureError(f"{model} answers too briefly to be measured")
    return tokens / seconds, max(guesses)


async def _prefill(
    engine: Engine, model: str, clock: Callable[[], float], decode: float, guess: float
) -> float:
    """Prefill tokens/s, of a prompt that takes a few seconds at most; the first token's step is taken off."""
    info = engine.models()[model]
    low, high = _PREFILL_TOKENS
    wanted = int(min(max(guess * _PREFILL_S, low), high, max(info.context_length - 256, 16)))
    # A word of these is one or two tokens in any vocabulary.
    text = " ".join(_WORDS[index % len(_WORDS)] for index in range(max(wanted // 2, 1)))
    timing = await _run(engine, model, text, 1, clock)
    seconds = timing.first_at - timing.admitted_at - 1 / decode
    return timing.prompt_tokens / max(seconds, 1e-3)


async def _run(engine: Engine, model: str, text: str, max_tokens: int, clock: Callable[[], float]) -> _Timing:
    """One generation, ended after `_DECODE_S` of decoding. Without a tenant no prompt cache is touched."""
    request = GenerationRequest(
        generation_id=f"measure-{uuid4().hex}",
        model=model,
        messages=[{"role": "user", "content": text}],
        sampling=SamplingParams(temperature=1.0, seed=1),
        max_tokens=max_tokens,
    )
    generation = engine.submit(request)
    admitted: Admitted | None = None
    admitted_at = first_at = last_at = clock()
    first = rest = 0
    try:
        while True:
            for event in await generation.events():
                if isinstance(event, Admitted):
                    admitted, admitted_at = event, clock()
                elif isinstance(event, Tokens):
                    last_at = clock()
                    if first:
                        rest += len(event.tokens)
                    else:
                        first, first_at = len(event.tokens), last_at
                elif isinstance(event, Rejected | Failed):
                    raise MeasureError(event.message)
                elif admitted is None or not first:
                    raise MeasureError(f"{model} gave no token")
                else:
                    return _Timing(admitted.prompt_tokens, admitted_at, first_at, last_at, first, rest)
            if first and last_at - first_at > _DECODE_S:
                generation.cancel()
    finally:
        generation.cancel()


class MeasuredFile:
    """The last measurement of each model, in the state folder. `setup`: what the figures depend on, as text

    (revision, device, engine version): figures of another set-up are not told.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / FILE_NAME

    def read(self, model: str, setup: str) -> Measured | None:
        entry = self._entries().get(model)
        if not isinstance(entry, dict) or entry.get("setup") != setup:
            return None
        try:
            return Measured.model_validate(entry.get("measured"))
        except ValidationError:
            return None

    def write(self, measured: Measured, setup: str) -> None:
        """Replace the model's figures. Raises `OSError`."""
        entries = self._entries()
        entries[measured.model] = {"setup": setup, "measured": measured.model_dump()}
        draft = self._file.with_name(f".{FILE_NAME}.new")
        with open(draft, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            json.dump(entries, out, indent=2)
        draft.replace(self._file)

    def _entries(self) -> dict[str, object]:
        try:
            document = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}
