"""The shapes that are captured: answers in a few numbers of rows, prompts one by one in a few widths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.platform import LaunchKey, LaunchShape, ShapePolicy, StepShape
from tessera_fakechip.attention import BLOCK

ROWS = (1, 3, 12)
WIDTHS = (16, 72)


class Buckets(ShapePolicy):
    def __init__(self, max_model_len: int, max_decode_tokens: int) -> None:
        self.blocks = -(-max_model_len // BLOCK)
        self.max_decode_tokens = max_decode_tokens

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        return [*self._decode(step), *self._prefill(step)]

    def keys(self) -> Sequence[LaunchKey]:
        widths = {1, self.max_decode_tokens}
        answers = [self._answers(rows, width) for width in sorted(widths) for rows in ROWS]
        return [*answers, *(self._prompt(width) for width in WIDTHS)]

    def _decode(self, step: StepShape) -> Iterator[LaunchShape]:
        for first in range(0, step.num_decode, max(ROWS)):
            last = min(first + max(ROWS), step.num_decode)
            width = 1 if int(step.query_lens[first:last].max()) == 1 else self.max_decode_tokens
            yield LaunchShape(self._answers(_fitting(ROWS, last - first), width, step.bits), first, last, stride=width)

    def _prefill(self, step: StepShape) -> Iterator[LaunchShape]:
        for row in range(step.num_decode, len(step.query_lens)):
            width = _fitting(WIDTHS, int(step.query_lens[row]))
            yield LaunchShape(self._prompt(width, step.bits), row, row + 1, stride=width)

    def _answers(self, rows: int, width: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        """Of rows that decode, each with its newest token and drafts that are to be verified."""
        kind = "decode" if width == 1 else "verify"
        return LaunchKey(kind, rows, width, self.blocks, rows * width, bits)

    def _prompt(self, width: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        return LaunchKey("prefill", 1, width, self.blocks, width, bits)


def _fitting(sizes: Sequence[int], needed: int) -> int:
    """The smallest that is large enough."""
    return next(size for size in sizes if size >= needed)
