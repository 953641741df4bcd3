"""How many tokens a job may generate (docs/contract.md, "Requests"). Pure."""

from __future__ import annotations

from gateway_protocol.limits import MIN_ANSWER_TOKENS


def answer_tokens(
    *,
    asked: int | None,
    prompt_tokens: int,
    context_length: int,
    max_output_tokens: int,
    memory_tokens: int | None = None,
) -> int:
    """The effective `max_tokens`; 0 or less: the context leaves no room (`context_length_exceeded`).

    A number the buyer gave is lowered to what is left, never refused: agents send one number to every model.
    `memory_tokens`: what memory admits for an answer of unstated length, at least `room_needed`; `None`: no
    bound.
    """
    left = min(max_output_tokens, context_length - prompt_tokens)
    if asked is not None:
        return min(asked, left)
    return left if memory_tokens is None else min(left, memory_tokens)


def room_needed(*, asked: int | None, left: int) -> int:
    """The fewest answer tokens that memory must admit for the job to start.

    `left`: `answer_tokens` without a memory bound. A stated length is held whole; an unstated one counts as
    no room under 4,096 tokens, or under what is left if that is less.
    """
    return left if asked is not None else min(MIN_ANSWER_TOKENS, left)


def no_room_message(prompt_tokens: int, context_length: int) -> str:
    return (
        f"This model's context is {context_length} tokens; the messages are {prompt_tokens} tokens"
        " and leave no room for an answer."
    )
