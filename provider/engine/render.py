"""The child's second thread: renders and counts prompts, so that the step loop never does."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from gateway_protocol.errors import ErrorCode
from provider.engine.base import Constraint, Rejected
from provider.engine.errors import EngineStartError
from provider.engine.prompt import PromptRefused, TextModel
from provider.engine.row import Job, PreparedJob
from provider.engine.sampling import resolve
from provider.engine.spec import EngineSettings, ModelSpec
from provider.engine.token_budget import answer_tokens, no_room_message

Prepared = PreparedJob | Rejected

# Jobs that wait for their grammar at once; the rest queue.
_COMPILING: Final = 4


class Renderer:
    """`on_prepared` is told what became of each job, `on_text` of each model's text side, on this thread."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        on_prepared: Callable[[Job, Prepared], None],
        on_text: Callable[[ModelSpec, TextModel | str], None],
    ) -> None:
        self._settings = settings
        self._on_prepared = on_prepared
        self._on_text = on_text
        self._inbox: queue.SimpleQueue[Job | ModelSpec] = queue.SimpleQueue()
        self._texts: dict[str, TextModel] = {}
        self._compilers = ThreadPoolExecutor(_COMPILING, thread_name_prefix="engine-compile")

    def start(self) -> None:
        threading.Thread(target=self._run, name="engine-render", daemon=True).start()

    def prepare(self, job: Job) -> None:
        self._inbox.put(job)

    def open_text(self, spec: ModelSpec) -> None:
        self._inbox.put(spec)

    def _run(self) -> None:
        try:
            while True:
                wanted = self._inbox.get()
                if isinstance(wanted, Job):
                    self._on_job(wanted, self._prepare(wanted))
                else:
                    self._on_text(wanted, self._open(wanted))
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _on_job(self, job: Job, prepared: Prepared) -> None:
        constraint = job.request.constraint
        if constraint is None or isinstance(prepared, Rejected):
            self._on_prepared(job, prepared)
        else:
            # A slow compilation holds up no one else's prompt.
            self._compilers.submit(self._hold, job, prepared, constraint)

    def _hold(self, job: Job, prepared: PreparedJob, constraint: Constraint) -> None:
        try:
            self._on_prepared(job, held_to(prepared, constraint))
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _open(self, spec: ModelSpec) -> TextModel | str:
        if spec.id not in self._texts:
            try:
                self._texts[spec.id] = TextModel(spec, forcing=self._settings.forcing)
            except EngineStartError as error:
                return str(error)
            except Exception as error:
                return (
                    f"model {spec.id}: its tokenizer can't be loaded ({type(error).__name__});"
                    " pull the model again"
                )
        return self._texts[spec.id]

    def _prepare(self, job: Job) -> Prepared:
        request = job.request
        spec = self._settings.model(request.model)
        if spec is None:
            return Rejected(ErrorCode.MODEL_NOT_FOUND, f"model {request.model} is not served here", "model")
        if job.cancelled:
            return Rejected(ErrorCode.PROVIDER_ERROR, "cancelled")
        text = self._open(spec)
        if isinstance(text, str):
            return Rejected(ErrorCode.PROVIDER_ERROR, text)
        wide = [token for token in request.sampling.logit_bias if token >= text.vocabulary_size]
        if wide:
            return Rejected(
                ErrorCode.INVALID_REQUEST, f"logit_bias: this model has no token {wide[0]}", "logit_bias"
            )
        try:
            prompt = text.render(request)
        except PromptRefused as refused:
            return refused.rejected
        count = len(prompt.tokens)
        limit = answer_tokens(
            asked=request.max_tokens,
            prompt_tokens=count,
            context_length=spec.context_length,
            max_output_tokens=spec.output_cap,
        )
        if limit <= 0:
            message = no_room_message(count, spec.context_length)
            return Rejected(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, "messages")
        sampling = resolve(request.sampling, text.sampling_defaults)
        return PreparedJob(
            job, text, prompt.tokens, limit, prompt.reasoning_open, sampling, prompt.boundaries
        )


def held_to(prepared: PreparedJob, constraint: Constraint) -> Prepared:
    """The job with its grammar, waiting for the compiler; as it is where none is needed or can be had."""
    grammars = prepared.text.grammars
    if grammars is None or not grammars.can_hold:
        return _without_grammar(prepared, constraint)
    held = grammars.prepare(constraint, reasoning_open=prepared.reasoning_open)
    if isinstance(held, Rejected):
        return held
    return prepared if held is None else replace(prepared, grammar=held)


def _without_grammar(prepared: PreparedJob, constraint: Constraint) -> Prepared:
    """What can't be honoured is refused, never dropped in silence (docs/contract.md, "Requests")."""
    if constraint.response_schema is not None:
        field = "response_format"
    elif constraint.refuse_uncompilable and constraint.choice.kind != "auto":
        field = "tool_choice"
    else:
        return prepared
    return Rejected(
        ErrorCode.UNSUPPORTED_FIELD, f"{field}: this device can't constrain this model's answers", field
    )
