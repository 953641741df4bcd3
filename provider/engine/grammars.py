"""One loaded model's grammars: a request's constraint in, a matcher for its row out, or a refusal.

Compiling happens off the step loop, within a time budget, in threads of its own (the compiler drops the
GIL). A thread can't be stopped: the caps in `schemas` are the real guard. What is compiled once is kept, and
copied for each row: over an agent's turns the same tools come again and again.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as BudgetSpent
from dataclasses import dataclass, replace
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.openai_types import ToolChoice
from provider.engine import schemas
from provider.engine.base import Constraint, Rejected, ThinkMarkers
from provider.engine.free_text import TextGrammar, TextMasks
from provider.engine.grammar import build
from provider.engine.grammar_spec import MARKERS, GrammarSpec, GrammarTool, native_markup
from provider.engine.ladder import Compiler, Fitted, keyword_of
from provider.engine.masks import GrammarRow, RowVocabulary
from provider.toolcalls.families import CALL_OPENER, FUNCTION_OPENER

COMPILE_SECONDS: Final = 1.0
KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Held:
    """A compiled grammar. `calls`: functions can be called under it. `loosened`: schemas of which something
    had to be left out, in words for the log, without anything of the buyer's."""

    prototype: LLMatcher
    vocabulary: RowVocabulary
    owes: bool
    reasoning_open: bool
    calls: bool
    text: TextGrammar | None = None
    loosened: tuple[str, ...] = ()

    def row(self) -> GrammarRow:
        """A row's own matcher, at the beginning of its answer."""
        return GrammarRow(
            self.prototype,
            self.vocabulary,
            owes=self.owes,
            reasoning_open=self.reasoning_open,
            text=self.text,
        )


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What became of one specification: the matcher or the complaint, how each tool fared, and the grammar
    as free text sees it."""

    result: LLMatcher | str
    tools: tuple[Fitted, ...] = ()
    text: TextGrammar | None = None


class Grammars:
    """`prepare` waits for the compiler, so any thread but the step thread may call it.

    `tokenizer`: llguidance's, as `open_tokenizer` makes it. `vocabulary`: the ID of each token.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        vocabulary: Mapping[str, int],
        *,
        family: Family,
        chat_template: str,
        think: ThinkMarkers | None,
    ) -> None:
        def is_token(text: str) -> bool:
            return text in vocabulary and bool(tokenizer.is_special_token(vocabulary[text]))

        self.tokenizer = tokenizer
        self._family = family
        self._markup = native_markup(family, chat_template)
        self._tokens = frozenset(filter(is_token, MARKERS[family]))
        in_tokens = think is not None and is_token(think.open) and is_token(think.close)
        self._text_think = None if in_tokens else think
        self._vocabulary = RowVocabulary(
            tokenizer.vocab_size,
            frozenset(tokenizer.eos_tokens),
            think_open=vocabulary[think.open] if think is not None and in_tokens else None,
            think_close=vocabulary[think.close] if think is not None and in_tokens else None,
        )
        self._compiler = Compiler(tokenizer, tokenizer.vocab_size)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Compiled] = OrderedDict()
        self._ids = {text: vocabulary[text] for text in self._tokens}
        self._text_masks: dict[bool, TextMasks] = {}

    @property
    def can_hold(self) -> bool:
        """Whether this model's markup can be written over its vocabulary: Harmony's is tokens or nothing."""
        return self._family is not Family.GPT_OSS or len(self._tokens) == len(MARKERS[Family.GPT_OSS])

    def prepare(self, constraint: Constraint, *, reasoning_open: bool) -> Held | Rejected | None:
        """`None`: there is nothing to hold, or nothing that can be held and the request can do without."""
        spec = self._spec(constraint, reasoning_open)
        if spec is None:
            return None
        try:
            key = _key(spec)
        except RecursionError:
            return self._given_up(constraint, "schema", "is nested too deeply")
        if (kept := self._lookup(key)) is not None:
            return self._outcome(constraint, spec, kept)
        if spec.answer is not None and (too_large := schemas.oversize(spec.answer.schema)) is not None:
            return _refused("response_format", "response_format", too_large.keyword, too_large.detail)
        work = self._pool.submit(self._compiled, spec, key)
        try:
            compiled = work.result(timeout=COMPILE_SECONDS)
        except BudgetSpent:
            return self._given_up(constraint, "schema", "takes too long to compile")
        except Exception as error:
            # Schemas come from strangers: what no cap has foreseen fails their request, not the engine. The
            # error's own words could quote them.
            print(f"grammar: {type(error).__name__}", file=sys.stderr)
            traceback.print_tb(error.__traceback__)
            return self._given_up(constraint, "schema", "can't be compiled")
        return self._outcome(constraint, spec, compiled)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _spec(self, constraint: Constraint, reasoning_open: bool) -> GrammarSpec | None:
        tools = () if self._family is Family.NONE else tuple(map(_declared, constraint.tools))
        forbids = constraint.choice.kind == "none" and self._family is not Family.NONE
        if not self.can_hold or not (tools or forbids or constraint.response_schema is not None):
            return None
        answer = constraint.response_schema
        return GrammarSpec(
            self._markup,
            tools,
            choice=constraint.choice if tools else ToolChoice("none"),
            parallel=constraint.parallel,
            answer=None if answer is None else GrammarTool("", answer or schemas.ANY_OBJECT),
            tokens=self._tokens,
            think=self._text_think,
            reasoning_open=reasoning_open,
            lead=self._vocabulary.think_close is not None,
        )

    # --- compiling, in a thread of the pool ------------------------------------------------------

    def _lookup(self, key: str) -> _Compiled | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _compiled(self, spec: GrammarSpec, key: str) -> _Compiled:
        """All schemas at once; only if that fails, one after the other to find who is to blame."""
        hopeful = self._hopeful(spec)
        if spec.answer is not None:
            spec = replace(spec, answer=self._answer(spec.answer))
            if spec.answer is not None and not self._compiler.patterns_bearable(spec.answer.schema):
                return _Compiled("regex: costs too much for each token", hopeful)
        lark = build(replace(spec, tools=tuple(fitted.tool for fitted in hopeful)))
        compiled = _Compiled(self._compiler.compile(lark), hopeful)
        if isinstance(compiled.result, str) and self._answer_compiles(spec):
            fitted = tuple(self._compiler.fit(spec, one) for one in hopeful)
            lark = build(replace(spec, tools=tuple(one.tool for one in fitted)))
            compiled = _Compiled(self._compiler.compile(lark), fitted)
        if not isinstance(compiled.result, str):
            compiled = replace(compiled, text=self._free_text(spec, compiled.result))
        with self._lock:
            self._kept[key] = compiled
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return compiled

    def _free_text(self, spec: GrammarSpec, prototype: LLMatcher) -> TextGrammar | None:
        """Where answers begin with text whose openers are known by their spelling, or are tokens."""
        if self._family is not Family.QWEN or spec.owes or spec.think is not None:
            return None
        opens = bool(spec.callable)
        with self._lock:
            if opens not in self._text_masks:
                self._text_masks[opens] = TextMasks(
                    self.tokenizer,
                    (CALL_OPENER, FUNCTION_OPENER),
                    self._ids.get(CALL_OPENER) if opens else None,
                    sorted(self._ids.values()),
                )
            return TextGrammar(self._text_masks[opens], prototype, fences=opens)

    def _hopeful(self, spec: GrammarSpec) -> tuple[Fitted, ...]:
        total = 0
        hopeful = []
        for index, tool in enumerate(spec.callable):
            crowded = index >= schemas.TOOLS or total > schemas.REQUEST_BYTES
            fitted = self._compiler.hopeful(tool, crowded=crowded)
            total += schemas.size_of(fitted.tool.schema)
            hopeful.append(fitted)
        return tuple(hopeful)

    def _answer(self, answer: GrammarTool) -> GrammarTool:
        return replace(answer, schema=schemas.close_objects(schemas.normalise_answer(answer.schema)))

    def _answer_compiles(self, spec: GrammarSpec) -> bool:
        if spec.answer is None:
            return True
        return not isinstance(
            self._compiler.compile(build(replace(spec, tools=(), choice=ToolChoice("none")))), str
        )

    # --- what the request is told ----------------------------------------------------------------

    def _outcome(
        self, constraint: Constraint, spec: GrammarSpec, compiled: _Compiled
    ) -> Held | Rejected | None:
        loosened = []
        for fitted in compiled.tools:
            if fitted.exact:
                continue
            name = fitted.tool.name
            index = next(i for i, tool in enumerate(spec.tools) if tool.name == name)
            if constraint.refuse_uncompilable or name in constraint.strict_tools:
                param = f"tools[{index}].function.parameters"
                return _refused(param, f'the parameters of function "{name}"', fitted.keyword)
            loosened.append(f"tools[{index}]: {fitted.rung.name}, for {fitted.keyword}")
        if isinstance(compiled.result, str):
            return self._given_up(constraint, keyword_of(compiled.result), "can't be compiled")
        return Held(
            compiled.result,
            self._vocabulary,
            owes=spec.owes,
            reasoning_open=spec.reasoning_open and spec.think is None,
            calls=bool(spec.callable),
            text=compiled.text,
            loosened=tuple(loosened),
        )

    def _given_up(self, constraint: Constraint, keyword: str, why: str) -> Rejected | None:
        """The grammar as a whole can't be had."""
        if constraint.response_schema is not None:
            return _refused("response_format", "response_format", keyword, why)
        if constraint.refuse_uncompilable or constraint.strict_tools:
            return _refused("tools", "the tools", keyword, why)
        return None


def open_tokenizer(tokenizer_json: str, *, width: int, end_tokens: Sequence[int]) -> LLTokenizer:
    """llguidance's view of a Hugging Face tokenizer. Slow, and it holds the GIL: 0.1 s to 2.4 s.

    `width`: of the model's logits, which may be more than the tokenizer has tokens.
    """
    return LLTokenizer(tokenizer_json, n_vocab=width, eos_token=sorted(end_tokens))


def _key(spec: GrammarSpec) -> str:
    """What a grammar is made of, as a digest: the tools' JSON and the few choices beside it."""
    tools = [(tool.name, tool.schema) for tool in spec.tools]
    answer = None if spec.answer is None else spec.answer.schema
    made_of = [tools, spec.choice.kind, spec.choice.name, spec.parallel, answer, spec.reasoning_open]
    return hashlib.sha256(json.dumps(made_of, ensure_ascii=False).encode(errors="replace")).hexdigest()


def _declared(tool: Mapping[str, Any]) -> GrammarTool:
    function = tool.get("function", tool)
    parameters = function.get("parameters")
    return GrammarTool(str(function["name"]), schemas.EMPTY_OBJECT if parameters is None else parameters)


def _refused(param: str, what: str, keyword: str, why: str = "isn't supported") -> Rejected:
    message = f'{what} can\'t be enforced on this device: "{keyword}" {why}'
    return Rejected(ErrorCode.UNSUPPORTED_FIELD, message, param)
