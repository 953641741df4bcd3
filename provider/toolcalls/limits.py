"""The choke point: whatever an engine emitted and a parser read, nothing passes that the request forbids.

Every mark of a call goes through `CallGate`: its name must be declared, calls must be allowed at all and may
not be more than asked for, its arguments have a size, and the whole answer has one. A strict function's
finished arguments must fit its schema. Nesting is bounded where the text is read (`json_scanner`,
`arguments`), since only there a piece can be refused before it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from gateway_protocol.errors import ErrorCode
from gateway_protocol.limits import EMITTED_ARGUMENTS_BYTES, EMITTED_ARGUMENTS_TOTAL_BYTES
from provider.toolcalls.marks import Arguments, Broken, Done, Fatal, Fault, Mark, Named
from provider.toolcalls.policy import CallPolicy

_NO_TOOLS = "The model called a function although the request declares none."
_TURNED_OFF = 'The model called a function although tool_choice is "none".'
_ONE_ONLY = "The model made a second tool call although parallel_tool_calls is false."
_TOO_LARGE = "The arguments of all tool calls together are larger than 2 MiB."


class CallGate:
    """One answer. `check` gives back the mark, or the failure that takes its place.

    `complete`: how many calls have passed. `over`: no further call is wanted.
    """

    def __init__(self, policy: CallPolicy) -> None:
        self._policy = policy
        self._bytes = 0
        self._total_bytes = 0
        self._name = ""
        self._strict_text: list[str] | None = None
        self.complete = 0

    @property
    def over(self) -> bool:
        return self.complete > 0 and self._policy.stops_after_first_call

    def check(self, mark: Mark) -> Mark:
        if isinstance(mark, Arguments):
            return self._arguments(mark)
        if isinstance(mark, Named):
            return self._named(mark)
        if isinstance(mark, Done):
            return self._done(mark)
        return mark

    def _named(self, mark: Named) -> Mark:
        policy = self._policy
        if policy.refuses_calls:
            return Fatal(ErrorCode.UPSTREAM_ERROR, _TURNED_OFF if policy.tools else _NO_TOOLS)
        if self.over:
            return Fatal(ErrorCode.UPSTREAM_ERROR, _ONE_ONLY)
        if mark.name not in policy.tools:
            return Broken(Fault.NAME)
        self._name = mark.name
        self._bytes = 0
        self._strict_text = [] if mark.name in policy.strict_tools else None
        return mark

    def _arguments(self, mark: Arguments) -> Mark:
        size = len(mark.text) if mark.text.isascii() else len(mark.text.encode("utf-8", "surrogatepass"))
        self._bytes += size
        if self._bytes > EMITTED_ARGUMENTS_BYTES:
            return Broken(Fault.SIZE)
        if self._total_bytes + self._bytes > EMITTED_ARGUMENTS_TOTAL_BYTES:
            return Fatal(ErrorCode.RESPONSE_BYTE_CAP_EXCEEDED, _TOO_LARGE)
        if self._strict_text is not None:
            self._strict_text.append(mark.text)
        return mark

    def _done(self, mark: Done) -> Mark:
        if self._strict_text is not None:
            schema = self._policy.tools[self._name]
            if schema is not None and not fits("".join(self._strict_text), schema):
                return Broken(Fault.SCHEMA)
        self._total_bytes += self._bytes
        self.complete += 1
        return mark


def fits(arguments: str, schema: Mapping[str, Any]) -> bool:
    """Whether the arguments' JSON text fits a function's schema. Nothing is fetched, no pattern can run long.

    A schema that can't be compiled judges nothing: it was refused before where that matters.
    """
    try:
        validator = jsonschema_rs.validator_for(
            dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError):
        return True
    try:
        return bool(validator.is_valid(json.loads(arguments)))
    except ValueError:
        return False
