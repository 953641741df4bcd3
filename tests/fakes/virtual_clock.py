"""Runs an asynchronous test on a loop whose clock jumps to the next timer: hours pass in milliseconds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import looptime

Params = ParamSpec("Params")


def on_virtual_clock(test: Callable[Params, Coroutine[Any, Any, None]]) -> Callable[Params, None]:
    """A decorator. The loop's time begins at 0; nothing in the test may wait for a thread or a socket."""

    @functools.wraps(test)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> None:
        loop = looptime.new_event_loop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    return run
