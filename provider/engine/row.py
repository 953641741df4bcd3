"""One job inside the running batch, and the job before it gets there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from provider.engine.base import GenerationRequest, TokenLogprob
from provider.engine.detokenize import Detokenizer
from provider.engine.grammars import Held
from provider.engine.ipc import TokenRow
from provider.engine.masks import GrammarRow
from provider.engine.prompt import TextModel
from provider.engine.sampling import Sampling
from provider.engine.spec import ModelSpec


@dataclass(slots=True)
class Job:
    """One submitted job, from arrival to its last event. Times are of `time.monotonic`.

    `cancelled` and `paused` are set by the thread that reads the daemon's messages and only read elsewhere.
    """

    serial: int
    request: GenerationRequest
    since: float
    cancelled: bool = False
    paused: bool = False
    steps_after_cancel: int = 0


@dataclass(slots=True)
class PreparedJob:
    """A job whose prompt is rendered and counted.

    `limit`: its effective max_tokens. `boundaries`: lengths of prefixes of the prompt that later prompts are
    likely to share; only given for a model whose cache can't be trimmed. `grammar`: what the answer is held
    to, `None` for free text.
    """

    job: Job
    text: TextModel
    prompt: list[int]
    limit: int
    reasoning_open: bool
    sampling: Sampling
    boundaries: tuple[int, ...] = ()
    grammar: Held | None = None

    @property
    def spec(self) -> ModelSpec:
        return self.text.spec

    @property
    def watched(self) -> bool:
        """Whether the daemon may end the answer at any token, as at a first call that no grammar ends."""
        request, grammar = self.job.request, self.grammar
        return request.watched or (bool(request.tools) and not (grammar is not None and grammar.calls))

    @property
    def wants_logprobs(self) -> bool:
        return self.job.request.sampling.top_logprobs is not None

    @property
    def cache_key(self) -> tuple[str, str] | None:
        """Whose computed prompts this job may use (`prompt_cache`); `None`: nobody's."""
        tenant = self.job.request.tenant
        return None if tenant is None else (self.spec.id, tenant)


@dataclass(slots=True)
class Row:
    """A prepared job with its place in a batch. `uid`: the batch's name for it, `None` while held back."""

    prepared: PreparedJob
    detokenizer: Detokenizer
    sampler: Any
    processors: list[Any]
    grammar: GrammarRow | None = None
    uid: int | None = None
    generated: int = 0
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[TokenLogprob, tuple[TokenLogprob, ...]]] = field(default_factory=list)
    # The job's, kept here: they are asked for at every token.
    watched: bool = field(init=False)
    wants_logprobs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.watched = self.prepared.watched
        self.wants_logprobs = self.prepared.wants_logprobs

    @property
    def job(self) -> Job:
        return self.prepared.job

    def take_output(self) -> TokenRow | None:
        """What came since the last call; `None` when nothing did."""
        if not self.ids:
            return None
        logprobs = tuple(self.logprobs) if self.wants_logprobs else None
        row = TokenRow(self.job.serial, tuple(self.texts), tuple(self.ids), logprobs, together=True)
        self.texts, self.ids, self.logprobs = [], [], []
        return row
