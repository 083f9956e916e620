"""A few shapes of launches, prefill and decode apart."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform.launch import Kind, LaunchKey, LaunchShape, ShapePolicy, StepShape

DECODE_ROWS = (2, 8)
PREFILL_WIDTHS = (16, 64)
PREFILL_ROWS = 2


class Buckets(ShapePolicy):
    """Decode in 2 or 8 rows; prefill in 2 rows of 16 or 64 tokens, each row at a multiple of the width, so that padding
    lies between requests."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        shapes = []
        for first in range(0, step.num_decode, max(DECODE_ROWS)):
            last = min(first + max(DECODE_ROWS), step.num_decode)
            rows = next(rows for rows in DECODE_ROWS if rows >= last - first)
            shapes.append(LaunchShape(self._key("decode", rows, 1, step.bits), first, last, 1))
        for first in range(step.num_decode, len(step.query_lens), PREFILL_ROWS):
            last = min(first + PREFILL_ROWS, len(step.query_lens))
            longest = int(step.query_lens[first:last].max())
            width = next(width for width in PREFILL_WIDTHS if width >= longest)
            shapes.append(LaunchShape(self._key("prefill", PREFILL_ROWS, width, step.bits), first, last, width))
        return shapes

    def keys(self) -> Sequence[LaunchKey]:
        decode = [self._key("decode", rows, 1) for rows in DECODE_ROWS]
        return decode + [self._key("prefill", PREFILL_ROWS, width) for width in PREFILL_WIDTHS]

    def _key(self, kind: Kind, rows: int, width: int, bits: frozenset[str] = frozenset()) -> LaunchKey:
        return LaunchKey(kind, rows, width, self.blocks, rows * width, bits)
