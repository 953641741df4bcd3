"""The scripted backend: replays given output with given timing, inside the same child as the real one.

So a killed, hung or exited child is a real one, and slots, queue, cancel and back-pressure are those of the
MLX backend. It can't force, and counts prompt tokens as characters ÷ 4.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway_protocol.errors import ErrorCode
from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState
from provider.engine.base import (
    Admitted,
    EngineEvent,
    Failed,
    Finished,
    GenerationRequest,
    Rejected,
    StopCause,
    TokenLogprob,
)
from provider.engine.ipc import Beat, ChildChannel, Hello, JobEvent, ModelReport, Serving, Setup, TokenRow
from provider.engine.script import ScriptedTokens, ScriptLine, answer_for, load_script, tokenize
from provider.engine.token_budget import answer_tokens, no_room_message
from provider.engine.waiting import WaitingLine

DEFAULT_SLOTS = 8
# Tokens of one job that leave in one turn when no time is to pass between them: one "step" of this engine.
BURST = 16
IDLE_BEAT_SECONDS = 1.0
QUEUE_RETRY_MS = 1_000


@dataclass(slots=True)
class _Job:
    serial: int
    request: GenerationRequest
    line: ScriptLine
    tokens: ScriptedTokens
    admitted: Admitted
    limit: int
    sent: int = 0
    start: float = 0.0
    paused: bool = False
    cancelled: bool = False
    steps_after_cancel: int = 0

    def due(self) -> float:
        """When its next token may leave."""
        return self.start + self.sent * self.line.ms_per_token / 1000

    def ready_tokens(self, now: float) -> int:
        """How many tokens may leave now; a step holds at most `BURST` of one job."""
        left = self.limit - self.sent
        if self.line.fault is not None:
            left = min(left, self.line.fault_after_tokens - self.sent)
        if self.line.ms_per_token == 0:
            return min(left, BURST)
        passed = int((now - self.start) * 1000 / self.line.ms_per_token) + 1
        return min(left, BURST, passed - self.sent)


class ScriptedBackend:
    """One thread plays all jobs; `submit`, `cancel`, `pause` may be called from any other."""

    def __init__(self, setup: Setup, channel: ChildChannel) -> None:
        settings = setup.settings
        assert settings.script is not None
        self._settings = settings
        self._preload = setup.preload
        self._script = load_script(settings.script)
        self._channel = channel
        self._slots = settings.slots or DEFAULT_SLOTS
        self._line: WaitingLine[_Job] = WaitingLine(
            seconds=settings.queue_seconds, length=settings.queue_length
        )
        self._active: dict[int, _Job] = {}
        self._commands: list[tuple[Any, ...]] = []
        self._wake = threading.Condition()
        self._resident: set[str] = set()
        self._tokenized: dict[tuple[str, Family], ScriptedTokens] = {}
        self._beat = Beat()

    def start(self) -> None:
        self._channel.send(Hello(self._settings.device, self._slots))
        for model in self._preload:
            self._load(model)
        self._channel.send(Serving(self._slots))
        threading.Thread(target=self._run, name="engine-scripted", daemon=True).start()

    def submit(self, serial: int, request: GenerationRequest) -> None:
        self._command(self._on_submit, serial, request, time.monotonic())

    def cancel(self, serial: int) -> None:
        self._command(self._on_cancel, serial)

    def pause(self, serial: int, paused: bool) -> None:
        self._command(self._on_pause, serial, paused)

    # --- the playing thread ------------------------------------------------------------------

    def _command(self, *command: Any) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(70)

    def _turn(self) -> None:
        now = time.monotonic()
        with self._wake:
            if not self._commands and (pause := self._idle_seconds(now)) > 0:
                self._wake.wait(pause)
            commands, self._commands = self._commands, []
        for handler, *arguments in commands:
            handler(*arguments)
        now = time.monotonic()
        self._admit(now)
        for job in list(self._active.values()):
            if not job.paused:
                self._play(job, now)
        self._send_beat()

    def _idle_seconds(self, now: float) -> float:
        times = [job.due() for job in self._active.values() if not job.paused]
        deadline = self._line.next_deadline()
        if deadline is not None:
            times.append(deadline)
        return max(0.0, min([t - now for t in times] + [IDLE_BEAT_SECONDS]))

    def _send_beat(self) -> None:
        beat = self._beat
        self._channel.send(beat)
        self._beat = Beat(beat.steps, beat.generated_tokens, beat.cancels, beat.prefilled_tokens)

    def _tell(self, serial: int, event: EngineEvent) -> None:
        self._beat.rows.append(JobEvent(serial, event))

    def _on_submit(self, serial: int, request: GenerationRequest, since: float) -> None:
        job = self._prepare(serial, request)
        if isinstance(job, Rejected):
            self._tell(serial, job)
        elif self._line.full:
            self._tell(serial, _overloaded("the engine's queue is full"))
        else:
            self._line.add(serial, job, cost=job.admitted.prompt_tokens, since=since)

    def _on_cancel(self, serial: int) -> None:
        self._beat.cancels += 1
        if self._line.remove(serial) is not None:
            self._tell(serial, Finished(StopCause.CANCELLED, 0))
        elif (job := self._active.get(serial)) is not None and not job.line.ignore_stop:
            self._end(job, Finished(StopCause.CANCELLED, job.sent))
        elif job is not None:
            job.cancelled = True

    def _on_pause(self, serial: int, paused: bool) -> None:
        job = self._active.get(serial)
        if job is None or job.paused == paused:
            return
        job.paused = paused
        if not paused:
            # The time it was held is not made up for by a burst.
            job.start = max(job.start, time.monotonic() - job.sent * job.line.ms_per_token / 1000)

    def _prepare(self, serial: int, request: GenerationRequest) -> _Job | Rejected:
        spec = self._settings.model(request.model)
        if spec is None:
            return Rejected(ErrorCode.MODEL_NOT_FOUND, f"model {request.model} is not served here", "model")
        self._load(spec.id)
        line = answer_for(self._script, _text_of(request.messages[-1]) if request.messages else "")
        if line is None:
            return Rejected(ErrorCode.PROVIDER_ERROR, "no line of the script matches the last message")
        prompt_tokens = _prompt_tokens(request)
        limit = answer_tokens(
            asked=request.max_tokens,
            prompt_tokens=prompt_tokens,
            context_length=spec.context_length,
            max_output_tokens=spec.output_cap,
        )
        if limit <= 0:
            message = no_room_message(prompt_tokens, spec.context_length)
            return Rejected(ErrorCode.CONTEXT_LENGTH_EXCEEDED, message, "messages")
        tokens = self._tokens(line, spec.family)
        return _Job(
            serial, request, line, tokens, Admitted(prompt_tokens, 0, limit), min(limit, len(tokens.texts))
        )

    def _tokens(self, line: ScriptLine, family: Family) -> ScriptedTokens:
        key = (f"{line.chars_per_token}:{line.text}", family)
        if key not in self._tokenized:
            self._tokenized[key] = tokenize(line, family)
        return self._tokenized[key]

    def _load(self, model: str) -> None:
        if model not in self._resident:
            self._resident.add(model)
            self._channel.send(ModelReport(model, ModelState.READY, None))

    def _admit(self, now: float) -> None:
        for serial, job in self._line.in_order(now)[: max(0, self._slots - len(self._active))]:
            self._line.remove(serial)
            job.start = now + job.line.prefill_ms / 1000
            self._active[serial] = job
            self._beat.prefilled_tokens += job.admitted.prompt_tokens
            self._tell(serial, job.admitted)
        # Only who found no slot can be late: where nobody may wait, a free slot is still to be had.
        for late in self._line.pop_expired(now):
            self._tell(late.serial, _overloaded("no slot became free in time"))

    def _play(self, job: _Job, now: float) -> None:
        if now < job.start:
            return
        count = job.ready_tokens(now)
        if count > 0:
            self._beat.rows.append(_row(job, count))
            self._beat.steps += 1
            self._beat.generated_tokens += count
            job.sent += count
            job.steps_after_cancel += job.cancelled
        if job.line.fault is not None and job.sent >= min(job.line.fault_after_tokens, job.limit):
            self._fault(job)
        elif job.sent >= job.limit:
            cut = job.line.finish_reason == "length" or job.limit < len(job.tokens.texts)
            cause = StopCause.LENGTH if cut else StopCause.STOP
            self._end(job, Finished(cause, job.sent, job.steps_after_cancel))

    def _fault(self, job: _Job) -> None:
        if job.line.fault == "raise":
            self._end(job, Failed("step_error", "the engine's step failed"))
            return
        self._send_beat()
        if job.line.fault == "exit":
            os._exit(3)
        while True:
            time.sleep(3600)

    def _end(self, job: _Job, event: EngineEvent) -> None:
        del self._active[job.serial]
        self._tell(job.serial, event)


def _overloaded(message: str) -> Rejected:
    return Rejected(ErrorCode.PROVIDER_OVERLOADED, message, retry_after_ms=QUEUE_RETRY_MS)


def _row(job: _Job, count: int) -> TokenRow:
    part = slice(job.sent, job.sent + count)
    texts = job.tokens.texts[part]
    logprobs = None
    top = job.request.sampling.top_logprobs
    if top is not None:
        # The script leaves no alternative: each token is certain.
        chosen = [TokenLogprob(text, text.encode(), 0.0) for text in texts]
        logprobs = tuple((entry, (entry,) if top else ()) for entry in chosen)
    return TokenRow(job.serial, texts, job.tokens.ids[part], logprobs)


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def _prompt_tokens(request: GenerationRequest) -> int:
    characters = 0
    for message in request.messages:
        characters += len(_text_of(message))
        if message.get("tool_calls"):
            characters += len(json.dumps(message["tool_calls"], ensure_ascii=False))
    if request.tools:
        characters += len(json.dumps(list(request.tools), ensure_ascii=False))
    return max(1, -(-characters // 4))
