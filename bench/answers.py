"""A streamed answer as a buyer saw it, and what its times say. Pure; times are of `time.monotonic`, in s."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Servers write an event whole, so one is never cut by a chunk of HTTP's chunked encoding.
_EVENT = re.compile(rb"data: (\{[^\n]*\})\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """`sent`: when the request left. `times`: of each event that brought something of the answer.

    `sizes`: how many characters each event brought, empty where each brought one token.

    `tokens`, `prompt_tokens`, `cached_tokens`: as the usage says. `error`: its words, where it failed.
    """

    sent: float
    times: tuple[float, ...]
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    text: str = ""
    error: str | None = None
    sizes: tuple[int, ...] = ()

    @property
    def first_s(self) -> float:
        """From the request to the first of the answer."""
        return self.times[0] - self.sent

    @property
    def last(self) -> float:
        return self.times[-1]


def read_answer(sent: float, received: Sequence[tuple[float, bytes]]) -> Answer:
    """What a server-sent stream was: `received` are its bytes with the time each part came."""
    times: list[float] = []
    sizes: list[int] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    error: str | None = None
    for at, event in _events(received):
        if "error" in event:
            error = str(event["error"])
            continue
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            said = [delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning")]
            said += [call["function"].get("arguments") for call in delta.get("tool_calls") or ()]
            if any(said):
                times.append(at)
                sizes.append(sum(len(text) for text in said if text))
                texts.append(delta.get("content") or "")
    if not times and error is None:
        error = b"".join(part for _, part in received)[:300].decode("utf-8", "replace") or "no answer"
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        sent=sent,
        times=tuple(times),
        tokens=usage.get("completion_tokens", 0),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens", 0),
        text="".join(texts),
        error=error,
        sizes=tuple(sizes),
    )


def _events(received: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    rest = b""
    for at, part in received:
        data = rest + part
        end = 0
        for found in _EVENT.finditer(data):
            end = found.end()
            yield at, json.loads(found[1])
        rest = data[end:]


def steady_tokens_per_s(answers: Sequence[Answer]) -> float:
    """Tokens a second, all streams together, while every one of them was decoding.

    So neither prefill nor the tail in which some are done already counts. 0 where they never all ran at once.
    """
    begin = max(answer.times[0] for answer in answers)
    end = min(answer.last for answer in answers)
    if end <= begin:
        return 0.0
    tokens = 0.0
    for answer in answers:
        # An event may carry several tokens, the first and the last fewer: as its share of the characters.
        sizes = answer.sizes or (1,) * len(answer.times)
        inside = sum(size for at, size in zip(answer.times, sizes, strict=True) if begin < at <= end)
        tokens += inside * answer.tokens / sum(sizes)
    return tokens / (end - begin)


def whole_tokens_per_s(answers: Sequence[Answer]) -> float:
    """Tokens a second from the first request to the last token: prompts, waiting and tails included."""
    seconds = max(answer.last for answer in answers) - min(answer.sent for answer in answers)
    return sum(answer.tokens for answer in answers) / seconds


def worst_gap(answers: Sequence[Answer], begin: float, end: float) -> float:
    """The longest time between two events of one answer, of those that began between `begin` and `end`."""
    gaps = [
        after - before
        for answer in answers
        for before, after in pairwise(answer.times)
        if after >= begin and before <= end
    ]
    return max(gaps, default=0.0)
