"""The shapes that are captured: answers in a few numbers of rows, prompts one by one in a few widths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.platform import LaunchKey, LaunchShape, ShapePolicy, StepShape
from tessera_fakechip.attention import BLOCK

ROWS = (1, 3, 12)
WIDTHS = (16, 72)


class Buckets(ShapePolicy):
    def __init__(self, max_model_len: int) -> None:
        self.blocks = -(-max_model_len // BLOCK)

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        return [*self._decode(step), *self._prefill(step)]

    def keys(self) -> Sequence[LaunchKey]:
        return [*(self._answers(rows) for rows in ROWS), *(self._prompt(width) for width in WIDTHS)]

    def _decode(self, step: StepShape) -> Iterator[LaunchShape]:
        for first in range(0, step.num_decode, max(ROWS)):
            last = min(first + max(ROWS), step.num_decode)
            yield LaunchShape(self._answers(_fitting(ROWS, last - first), step.bits), first, last, stride=1)

    def _prefill(self, step: StepShape) -> Iterator[LaunchShape]:
        for row in range(step.num_decode, len(step.query_lens)):
            width = _fitting(WIDTHS, int(step.query_lens[row]))
            yield LaunchShape(self._prompt(width, step.bits), row, row + 1, stride=width)

    def _answers(self, rows: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        return LaunchKey("decode", rows, 1, self.blocks, rows, bits)

    def _prompt(self, width: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        return LaunchKey("prefill", 1, width, self.blocks, width, bits)


def _fitting(sizes: Sequence[int], needed: int) -> int:
    """The smallest that is large enough."""
    return next(size for size in sizes if size >= needed)
