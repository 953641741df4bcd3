"""Join the engine's tokens to the visible text that is delivered, for `logprobs.content`.

Only tokens of visible content are listed (docs/contract.md, "What becomes a call", 11). Both sides are known
by their offsets in the raw output: a token covers [start, end), a delivered text begins at its `start`. A
token belongs to the text that holds its first delivered character; it is listed once. Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gateway_protocol.completion import logprob_entry
from provider.engine.base import Token


class TokenJoin:
    """Tokens come in as they are generated, texts as they are delivered, both in the raw output's order."""

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, Token]] = deque()
        self._generated = 0

    def generated(self, token: Token) -> None:
        end = self._generated + len(token.text)
        if token.logprob is not None:
            self._tokens.append((self._generated, end, token))
        self._generated = end

    def delivered(self, start: int, length: int) -> list[dict[str, Any]]:
        """OpenAI's entries for the text of `length` characters at `start`; tokens before it are forgotten.

        A token without text (a part of a code point) stands where the code point does, so it goes with it.
        """
        entries: list[dict[str, Any]] = []
        tokens = self._tokens
        while tokens and tokens[0][0] < start + length:
            token_start, token_end, token = tokens.popleft()
            if token_end > start or token_start == token_end == start:
                entries.append(_entry(token))
        return entries


def _entry(token: Token) -> dict[str, Any]:
    assert token.logprob is not None
    return logprob_entry(*token.logprob, top=token.top_logprobs)
