"""Compile grammars, and find for each schema the most of it that compiles. For the compiler's threads.

llguidance never raises: a constructor, a mask or a token that fails leaves the matcher in error, and such a
matcher only looks as if its text were at an end. So every step here asks.
"""

from __future__ import annotations

import random
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from gateway_protocol.openai_types import ToolChoice
from provider.engine import schemas
from provider.engine.bitmasks import first_mask, tokens_in
from provider.engine.grammar import build
from provider.engine.grammar_spec import GrammarSpec, GrammarTool
from provider.engine.lark import json_value
from provider.engine.schemas import Rung

GRAMMAR_CHARS: Final = 4 << 20
# Errors must not quote the grammar: it is the buyer's, and errors reach the log.
_LIMITS: Final = LLParserLimits(
    verbose_errors=False, max_lexer_states=50_000, step_lexer_fuel=200_000, step_max_items=50_000
)
# A pattern that goes over this in a short walk would slow the step of every row, then fail in mid-call.
_PATTERN_LIMITS: Final = LLParserLimits(verbose_errors=False, max_lexer_states=8_000)
_PATTERN_STEPS: Final = 32
_PATTERNS_TRIED: Final = 16
_PATTERNS_KNOWN: Final = 1024
# What the compiler says, and the keyword that it is about.
_REASONS: Final = (
    (re.compile(r'Unimplemented keys: \["([^"]+)"'), ""),
    (re.compile(r"Unknown format"), "format"),
    (re.compile(r"oneOf"), "oneOf"),
    (re.compile(r"min/maxProperties"), "minProperties"),
    (re.compile(r"patternProperty"), "patternProperties"),
    (re.compile(r"regex|lookaround|expressions|states"), "pattern"),
    (re.compile(r"Resource |Pointer "), "$ref"),
    (re.compile(r"Invalid type"), "type"),
    (re.compile(r"Unsatisfiable"), "required"),
)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A tool with the schema that its grammar holds. `keyword`: the first that had to go, if any had to."""

    tool: GrammarTool
    rung: Rung
    keyword: str = ""

    @property
    def exact(self) -> bool:
        return self.rung is schemas.EXACT


def keyword_of(complaint: str) -> str:
    """The schema keyword that a compiler error is about, `schema` where it names none."""
    for pattern, keyword in _REASONS:
        if found := pattern.search(complaint):
            return keyword or found.group(1)
    return "schema"


class Compiler:
    """One tokenizer's. `width`: of the model's logits."""

    def __init__(self, tokenizer: LLTokenizer, width: int) -> None:
        self._tokenizer = tokenizer
        self._width = width
        self._lock = threading.Lock()
        self._patterns: OrderedDict[str, bool] = OrderedDict()

    def compile(self, lark: str) -> LLMatcher | str:
        """A matcher whose first mask is computed (its copies share it), or the compiler's complaint."""
        if len(lark) > GRAMMAR_CHARS:
            return "the grammar is too large"
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            first_mask(matcher, self._width)
        return str(matcher.get_error()) if matcher.is_error() else matcher

    def hopeful(self, tool: GrammarTool, *, crowded: bool) -> Fitted:
        """What to try first: the whole schema, if it is within the caps and its patterns are bearable.

        `crowded`: the request's tools before this one have used up what one request may cost.
        """
        too_large = schemas.oversize(tool.schema)
        if too_large is not None or crowded:
            keyword = too_large.keyword if too_large is not None else "schema"
            return Fitted(replace(tool, schema=schemas.names_only(tool.schema)), schemas.NAMES, keyword)
        prepared = schemas.close_objects(schemas.normalise(tool.schema))
        fitted = Fitted(replace(tool, schema=prepared), schemas.EXACT)
        if self.patterns_bearable(prepared):
            return fitted
        plain = schemas.without_patterns(prepared)
        return Fitted(replace(tool, schema=plain), schemas.WITHOUT_PATTERNS, "pattern")

    def fit(self, spec: GrammarSpec, hopeful: Fitted) -> Fitted:
        """Walk down the ladder from where `hopeful` stands until this tool's grammar compiles alone."""
        keyword = hopeful.keyword
        choice = ToolChoice("auto" if spec.choice.kind == "auto" else "required")
        for rung in schemas.LADDER[schemas.LADDER.index(hopeful.rung) :]:
            tool = replace(hopeful.tool, schema=rung.change(dict(hopeful.tool.schema)), lenient=rung.lenient)
            alone = replace(spec, tools=(tool,), choice=choice, answer=None, parallel=False)
            complaint = self.compile(build(alone))
            if not isinstance(complaint, str):
                return Fitted(tool, rung, keyword)
            keyword = keyword or keyword_of(complaint)
        return Fitted(replace(hopeful.tool, schema=schemas.ANY_OBJECT), schemas.ANY, keyword)

    def patterns_bearable(self, schema: Any) -> bool:
        """Whether a short walk through each pattern of a schema stays within the lexer's limits."""
        patterns = list(dict.fromkeys(schemas.patterns_of(schema)))
        return len(patterns) <= _PATTERNS_TRIED and all(map(self._pattern_bearable, patterns))

    def _pattern_bearable(self, pattern: str) -> bool:
        with self._lock:
            if pattern in self._patterns:
                return self._patterns[pattern]
        bearable = self._walk(pattern)
        with self._lock:
            self._patterns[pattern] = bearable
            while len(self._patterns) > _PATTERNS_KNOWN:
                self._patterns.popitem(last=False)
        return bearable

    def _walk(self, pattern: str) -> bool:
        """The same steps each time, mostly through the pattern's own letters. One that doesn't compile is
        left to the ladder."""
        value = json_value({"type": "string", "pattern": pattern}, lenient=False, loose=False)
        grammar = LLMatcher.grammar_from_lark(f"start: value\nvalue: {value}\n")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_PATTERN_LIMITS)
        if matcher.is_error():
            return True
        chance = random.Random(pattern)
        letters = frozenset(
            token for char in pattern if char.isalnum() for token in self._tokenizer.tokenize_str(char)[:1]
        )
        for _ in range(_PATTERN_STEPS):
            token = self._step(matcher, letters, chance)
            if token is None or not matcher.consume_token(token) or matcher.is_stopped():
                break
        return not matcher.is_error()

    def _step(self, matcher: LLMatcher, preferred: frozenset[int], chance: random.Random) -> int | None:
        mask = first_mask(matcher, self._width)
        allowed = tokens_in(mask, self._width)
        own = [token for token in allowed if token in preferred]
        if not allowed or matcher.is_error():
            return None
        return chance.choice(own if own and chance.random() < 0.8 else allowed)
