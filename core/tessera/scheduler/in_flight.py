"""Steps that were scheduled and whose output has not come, and what has to wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tessera.arrays import Array
from tessera.step import BlockCopy


@dataclass(frozen=True)
class StepInFlight:
    """What update() needs to know of a step. prompts: rows that computed tokens of a prompt, or of what was taken from
    them; departures: of the rows, as it was scheduled; closing: rows that were left when this was the newest step to
    use them."""

    number: int
    rows: Array
    ends: Array
    sampling: Array
    prompts: Array
    departures: int
    copies: Sequence[BlockCopy]
    scheduled_at: float
    num_tokens: int
    closing: list[int] = field(default_factory=list)


class InFlight:
    """A queue: outputs come in the order of the steps."""

    def __init__(self) -> None:
        self._steps: deque[StepInFlight] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: StepInFlight) -> None:
        self._steps.append(step)

    def retire(self, number: int) -> StepInFlight:
        step = self._steps.popleft()
        assert step.number == number, (
            f"the output of step {number} came, but step {step.number} is the oldest in flight"
        )
        return step

    def close_after_last_use(self, row: int) -> bool:
        """Notes that a row closes when the newest step that uses it retires; False where none is in flight."""
        for step in reversed(self._steps):
            if (step.rows == row).any():
                step.closing.append(row)
                return True
        return False

    @property
    def closing(self) -> list[int]:
        return [row for step in self._steps for row in step.closing]

    @property
    def copies(self) -> list[BlockCopy]:
        return [copy for step in self._steps for copy in step.copies]
