"""A model's text side: chat template, tokenizer, end tokens, sampling defaults.

Lives in the child, off its step loop. Nothing is fetched: the folder is all there is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import load as load_tokenizer

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from provider.engine.base import GenerationRequest, Rejected
from provider.engine.detokenize import vocabulary_of
from provider.engine.grammars import Grammars, open_tokenizer
from provider.engine.model_folder import read_json
from provider.engine.prompt_tokens import PromptTokens
from provider.engine.spec import ModelSpec

# Harmony's end tokens are part of its markup: the parser needs to see them.
_REPORTED_ENDS: Final = {Family.GPT_OSS: ("<|call|>", "<|return|>")}
_TEMPLATE_WORDS: Final = 500
# Stands for a first message that begins like no other.
_PROBE: Final = "\u2063\u2063"


class Prompt(NamedTuple):
    """`reasoning_open`: the rendered prompt ends inside reasoning, so the output starts there.

    `boundaries`: lengths of prefixes that later prompts are likely to share.
    """

    tokens: list[int]
    reasoning_open: bool
    boundaries: tuple[int, ...] = ()


class PromptRefused(Exception):
    """The conversation can't become a prompt; `rejected` tells the buyer why."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.rejected = rejected


class TextModel:
    """One for each model; may be used by one thread at a time (the rendering one).

    `forcing`: build what grammars need, `grammars`, which any thread may use.
    """

    def __init__(self, spec: ModelSpec, *, forcing: bool = False) -> None:
        assert spec.path is not None
        self.spec = spec
        config = read_json(spec.path / "config.json")
        generation = _optional_json(spec.path / "generation_config.json")
        wrapper = load_tokenizer(spec.path)
        self.tokenizer = wrapper._tokenizer
        # Some models come with code in place of a template; mlx-lm brings it along.
        self._renderer = getattr(wrapper, "_chat_template", None)
        self._backend = _backend_of(self.tokenizer)
        self._tokens = (
            None
            if self._backend is None
            else PromptTokens(self._backend, self.tokenizer.added_tokens_decoder)
        )
        self.vocabulary = vocabulary_of(self.tokenizer)
        self.sampling_defaults: Mapping[str, Any] = generation
        self.end_tokens = _end_tokens(config, generation, self.tokenizer)
        self.reported_ends = frozenset(self._token_ids(_REPORTED_ENDS.get(spec.family, ())))
        self.vocabulary_size = _vocabulary_size(config, len(self.tokenizer))
        # Set once the model is loaded, if its cache can't be trimmed (`prompt_cache`).
        self.wants_boundaries = False
        self.grammars = self._grammars() if forcing else None

    def render(self, request: GenerationRequest) -> Prompt:
        """Raises `PromptRefused` with the template's own words."""
        text = self.render_text(request.messages, request.tools, request.template_kwargs)
        tokens = self._encode(text, request.tenant)
        if not tokens:
            raise PromptRefused(_refusal("the conversation renders to an empty prompt"))
        think = self.spec.think
        return Prompt(
            tokens,
            think is not None and text.rstrip().endswith(think.open),
            self._boundaries(request, text, tokens) if self.wants_boundaries else (),
        )

    def _encode(self, text: str, tenant: str | None = None) -> list[int]:
        """The template has written what special tokens there are: none is added."""
        if self._tokens is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return self._tokens.encode(text, tenant)

    def _boundaries(self, request: GenerationRequest, text: str, tokens: list[int]) -> tuple[int, ...]:
        """Where the first user message begins (after system prompt and tools) and where the answer does."""
        found = {self._first_user(request, text, tokens), self._answer(request, text, tokens)}
        return tuple(sorted(length for length in found if 0 < length < len(tokens)))

    def _first_user(self, request: GenerationRequest, text: str, tokens: list[int]) -> int:
        order = next((n for n, m in enumerate(request.messages) if m.get("role") == "user"), None)
        if order is None or order > 1:
            return 0
        probe = [*request.messages[:order], {**request.messages[order], "content": _PROBE}]
        try:
            lead = self.render_text(probe, request.tools, request.template_kwargs).partition(_PROBE)[0]
        except PromptRefused:
            return 0
        begins = self._encode(lead) if text.startswith(lead) else []
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(tokens, begins, strict=False)))

    def _answer(self, request: GenerationRequest, text: str, tokens: list[int]) -> int:
        try:
            lead = self.render_text(
                request.messages, request.tools, request.template_kwargs, generation_prompt=False
            )
        except PromptRefused:
            return 0
        # Only the short end is tokenized again: the whole would cost as much as the first time.
        ends = self._encode(text[len(lead) :])
        fits = text.startswith(lead) and ends and tokens[-len(ends) :] == ends
        return len(tokens) - len(ends) if fits else 0

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any],
        *,
        generation_prompt: bool = True,
    ) -> str:
        conversation = [dict(message) for message in messages]
        declared = [dict(tool) for tool in tools] if tools else None
        try:
            if self._renderer is not None:
                return str(
                    self._renderer(
                        conversation,
                        tools=declared,
                        add_generation_prompt=generation_prompt,
                        **template_kwargs,
                    )
                )
            known = self._known_kwargs(declared, template_kwargs)
            return str(
                self.tokenizer.apply_chat_template(
                    conversation,
                    tools=declared,
                    add_generation_prompt=generation_prompt,
                    tokenize=False,
                    **known,
                )
            )
        except TemplateError as error:
            raise PromptRefused(_refusal(_words(error))) from None
        except Exception as error:
            # A template is a program of the model's makers; whatever it trips over is in the conversation.
            raise PromptRefused(_refusal(f"{type(error).__name__}: {_words(error)}")) from None

    def _known_kwargs(self, tools: list[dict[str, Any]] | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Those that the template reads: others would be noise, or clash with the renderer's own."""
        if not asked:
            return {}
        template = self.tokenizer.get_chat_template(None, tools)
        return {
            name: value for name, value in asked.items() if re.search(rf"\b{re.escape(name)}\b", template)
        }

    def _grammars(self) -> Grammars | None:
        """`None` where llguidance can't read the tokenizer: it has no fast form, or an unknown one."""
        if self._backend is None:
            return None
        # Harmony's `<|call|>` ends generation, but it is part of a call's markup, no end of the text.
        ends = self.end_tokens - frozenset(self._token_ids(("<|call|>",)))
        try:
            tokenizer = open_tokenizer(
                self._backend.to_str(), width=self.vocabulary_size, end_tokens=sorted(ends)
            )
        except (ValueError, RuntimeError):
            return None
        template = self.tokenizer.chat_template
        return Grammars(
            tokenizer,
            self.tokenizer.get_vocab(),
            family=self.spec.family,
            chat_template=template if isinstance(template, str) else "",
            think=self.spec.think,
        )

    def _token_ids(self, spellings: Sequence[str]) -> list[int]:
        vocabulary = self.tokenizer.get_vocab() if spellings else {}
        return [vocabulary[spelling] for spelling in spellings if spelling in vocabulary]


def _backend_of(tokenizer: Any) -> Any:
    """The fast form of a tokenizer, which neither pads nor truncates; `None` where it has none."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    backend = copy.copy(backend)
    backend.no_padding()
    backend.no_truncation()
    return backend


def _refusal(words: str) -> Rejected:
    return Rejected(
        ErrorCode.INVALID_REQUEST,
        f"the model's chat template refuses this conversation: {words}",
        "messages",
    )


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:_TEMPLATE_WORDS]


def _optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _vocabulary_size(config: Mapping[str, Any], otherwise: int) -> int:
    """Width of the model's logits: models that also see images keep it one level down."""
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        if isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    return otherwise


def _end_tokens(config: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Any) -> frozenset[int]:
    """From generation_config.json, else config.json; and the tokenizer's own."""
    found: set[int] = set()
    for source in (generation, config):
        value = source.get("eos_token_id")
        listed = value if isinstance(value, list) else [value]
        found.update(item for item in listed if isinstance(item, int) and not isinstance(item, bool))
        if found:
            break
    if isinstance(tokenizer.eos_token_id, int):
        found.add(tokenizer.eos_token_id)
    return frozenset(found)
