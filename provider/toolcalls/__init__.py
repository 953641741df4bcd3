"""Tool calls: what a model's output means, by its family's markup and the request's policy.

    policy  ─▶ OutputInterpreter ── feed(token) / finish(cause) ─▶ events ─▶ deltas
                 parser (run by a row of `families`) ─marks─▶ limits (choke point) ─▶ delivery

Pure: no clock, no I/O, no thread. Start reading at `interpreter`, then `parser` and `families`.
"""

from provider.toolcalls.deltas import to_delta
from provider.toolcalls.interpreter import OutputInterpreter
from provider.toolcalls.policy import CallPolicy
from provider.toolcalls.tokens import split_special

__all__ = ["CallPolicy", "OutputInterpreter", "split_special", "to_delta"]
