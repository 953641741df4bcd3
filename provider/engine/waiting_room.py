"""Prepared jobs on their way into a batch: for their model to be loaded, then for a slot and memory.

add ─▶ awaiting its model ─loaded─▶ in line ─slot, memory─▶ entering
           └── can't be loaded, too late, never fits ─▶ refused
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from gateway_protocol.errors import ErrorCode
from provider.engine.admission import Admission
from provider.engine.base import Rejected
from provider.engine.prompt_cache import PromptCache
from provider.engine.resident import ResidentModel
from provider.engine.residents import Residents
from provider.engine.row import PreparedJob
from provider.engine.waiting import WaitingLine

QUEUE_RETRY_MS: Final = 1_000

Refuse = Callable[[PreparedJob, Rejected], None]


class WaitingRoom:
    """Only the step thread comes here. `refuse` is told of each job that leaves without entering a batch."""

    def __init__(
        self,
        admission: Admission,
        residents: Residents,
        prompts: PromptCache,
        *,
        seconds: float,
        length: int,
        refuse: Refuse,
    ) -> None:
        self._prompts = prompts
        self._admission = admission
        self._residents = residents
        self._seconds = seconds
        self._refuse = refuse
        self._line: WaitingLine[PreparedJob] = WaitingLine(seconds=seconds, length=length)
        self._awaiting: list[PreparedJob] = []
        # Whether anything happened since the line was last looked at.
        self.stale = False

    @property
    def restless(self) -> bool:
        """Whether someone waits who may enter or be late, or has just ended."""
        return self.stale or bool(self._line) or bool(self._awaiting)

    def add(self, prepared: PreparedJob) -> None:
        if self._line.full:
            self._refuse(prepared, overloaded("the engine's queue is full"))
        elif self._residents.get(prepared.spec.id) is None:
            self._await_model(prepared)
        else:
            self._get_in_line(prepared, prepared.job.since)

    def wants(self, model: str) -> bool:
        """Whether anyone here needs this model."""
        waiting = [*self._awaiting, *(prepared for _, prepared in self._line.in_order(0.0))]
        return any(prepared.spec.id == model for prepared in waiting)

    def on_loaded(self, model: str) -> None:
        """Its loading ended. Those who waited for it get in line, their time there beginning now."""
        waited = [prepared for prepared in self._awaiting if prepared.spec.id == model]
        self._awaiting = [prepared for prepared in self._awaiting if prepared.spec.id != model]
        for prepared in waited:
            if self._residents.get(model) is not None:
                self._get_in_line(prepared, time.monotonic())
            else:
                self._refuse(
                    prepared, Rejected(ErrorCode.PROVIDER_ERROR, f"model {model} can't be loaded here")
                )

    def take_cancelled(self) -> list[PreparedJob]:
        cancelled = [prepared for prepared in self._awaiting if prepared.job.cancelled]
        self._awaiting = [prepared for prepared in self._awaiting if not prepared.job.cancelled]
        return cancelled + self._line.select(lambda prepared: prepared.job.cancelled)

    def expire(self) -> None:
        now = time.monotonic()
        for late in self._line.pop_expired(now):
            self._refuse(late, overloaded("no slot and memory for it became free in time"))
        for prepared in list(self._awaiting):
            # The time a model takes to load doesn't count; the time until that can be begun does.
            late_by_now = now - prepared.job.since >= self._seconds
            if late_by_now and not self._residents.is_loading(prepared.spec.id):
                self._awaiting.remove(prepared)
                if not self.wants(prepared.spec.id):
                    self._residents.forget(prepared.spec.id)
                self._refuse(prepared, overloaded("no memory for its model became free in time"))

    def seconds_to_deadline(self) -> float | None:
        deadline = self._line.next_deadline()
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def next_in(self) -> tuple[ResidentModel, PreparedJob] | None:
        """Who enters now that a slot is free, with its `limit` as memory admits; `None`: nobody can yet.

        Ask again until `None`: the next one's memory depends on this one's.
        """
        for serial, prepared in self._line.in_order(time.monotonic()):
            resident = self._residents.get(prepared.spec.id)
            if resident is None:
                # Unloaded since, for another's sake.
                self._line.remove(serial)
                self._await_model(prepared)
                continue
            verdict = self._admission.judge(resident, prepared)
            if verdict is None:
                # It will fit once another is done. Those behind it wait too: smaller ones would starve it.
                return None
            self._line.remove(serial)
            if isinstance(verdict, Rejected):
                self._refuse(prepared, verdict)
                continue
            prepared.limit = verdict
            return resident, prepared
        return None

    def _get_in_line(self, prepared: PreparedJob, since: float) -> None:
        key = prepared.cache_key
        saved = 0 if key is None else self._prompts.saves(key, prepared.prompt)
        self._line.add(prepared.job.serial, prepared, cost=len(prepared.prompt) - saved, since=since)
        self.stale = True

    def _await_model(self, prepared: PreparedJob) -> None:
        self._awaiting.append(prepared)
        self._residents.want(prepared.text)
        self.stale = True


def overloaded(message: str) -> Rejected:
    return Rejected(ErrorCode.PROVIDER_OVERLOADED, message, retry_after_ms=QUEUE_RETRY_MS)
