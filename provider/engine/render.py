"""The child's second thread: renders and counts prompts, so that the step loop never does."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable

from gateway_protocol.errors import ErrorCode
from provider.engine.base import Rejected
from provider.engine.errors import EngineStartError
from provider.engine.prompt import PromptRefused, TextModel
from provider.engine.row import Job, PreparedJob
from provider.engine.sampling import resolve
from provider.engine.spec import EngineSettings, ModelSpec
from provider.engine.token_budget import answer_tokens, no_room_message

Prepared = PreparedJob | Rejected


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
                    self._on_prepared(wanted, self._prepare(wanted))
                else:
                    self._on_text(wanted, self._open(wanted))
        except BaseException:
            traceback.print_exc()
            os._exit(70)

    def _open(self, spec: ModelSpec) -> TextModel | str:
        if spec.id not in self._texts:
            try:
                self._texts[spec.id] = TextModel(spec)
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
