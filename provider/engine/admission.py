"""Whether a job gets memory now, by live figures: what MLX holds, what rows will come to, what is left."""

from __future__ import annotations

from typing import Final

from provider.engine.base import Rejected
from provider.engine.kv_cost import Wish, admit
from provider.engine.memory import MachineMemory
from provider.engine.prompt_cache import PromptCache
from provider.engine.resident import ResidentModel
from provider.engine.residents import Residents
from provider.engine.row import PreparedJob

MOST_SLOTS: Final = 8
# A slot is worth having if it holds this much.
SLOT_TOKENS: Final = 8192
# Of what weights leave, how much kept prompts may take where the owner didn't say.
_PROMPTS_SHARE: Final = 4


class Admission:
    """Only the step thread comes here. Kept prompts make way before a job has to wait."""

    def __init__(
        self,
        memory: MachineMemory,
        prompts: PromptCache,
        residents: Residents,
        *,
        slots: int | None,
        prompt_cache_bytes: int | None,
    ) -> None:
        self._memory = memory
        self._prompts = prompts
        self._residents = residents
        self._slots = slots
        self._prompt_cache_bytes = prompt_cache_bytes

    def slots(self) -> int:
        """As configured; else what memory holds at 8,192 tokens each, 1 to 8."""
        if self._slots is not None:
            return self._slots
        resident = max(self._residents.all(), key=lambda one: one.used_at, default=None)
        if resident is None:
            return MOST_SLOTS
        tokens = min(SLOT_TOKENS, resident.text.spec.context_length)
        left = self._memory.most_bytes - resident.weight_bytes
        return max(1, min(MOST_SLOTS, left // max(1, resident.cost.row_bytes(tokens))))

    def judge(self, resident: ResidentModel, prepared: PreparedJob) -> int | Rejected | None:
        """The job's `max_tokens`; `None`: it has to wait; `Rejected`: it would never fit."""
        spec = prepared.spec
        wish = Wish(
            len(prepared.prompt), prepared.job.request.max_tokens, spec.context_length, spec.output_cap
        )
        while True:
            budget = self._memory.ceiling() - self._unmovable() - self._committed(but=resident)
            verdict = admit(
                wish,
                resident.cost,
                lengths=resident.lengths(),
                budget=budget,
                budget_alone=self._memory.most_bytes - resident.weight_bytes,
            )
            if verdict is not None or not self._residents.unload_one_idle(but=resident):
                return verdict

    def prompt_room(self) -> int:
        """What kept prompts may hold now: what the owner allows, and no more than the rows leave."""
        unmovable = self._unmovable()
        share = (
            max(0, self._memory.most_bytes - unmovable) // _PROMPTS_SHARE
            if self._prompt_cache_bytes is None
            else self._prompt_cache_bytes
        )
        left = self._memory.ceiling() - unmovable - self._committed()
        return max(0, min(share, left))

    def _unmovable(self) -> int:
        """Weights, and whatever else is held that neither rows nor kept prompts nor a step's work explain."""
        residents = self._residents.all()
        weights = sum(resident.weight_bytes for resident in residents)
        known = weights + self._prompts.nbytes + sum(resident.kv_bytes() for resident in residents)
        return weights + max(0, self._memory.active_bytes - known - self._memory.working_bytes)

    def _committed(self, but: ResidentModel | None = None) -> int:
        """What the running rows may come to."""
        return sum(
            max(resident.cost.batch_bytes(resident.lengths()), resident.kv_bytes())
            for resident in self._residents.all()
            if resident is not but
        )
