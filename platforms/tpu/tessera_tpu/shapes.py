"""The few shapes that programs are compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.platform import BucketedShapes

if TYPE_CHECKING:
    from tessera.config import EngineConfig

FEWEST_ROWS, FEWEST_TOKENS, STEP = 8, 64, 4
"""The smallest sizes, and the factor from one to the next: each size is a program that takes seconds to compile, and a
launch computes at most this factor more than it needs."""
ANY = 2**31 - 1


def bucketed(config: EngineConfig) -> BucketedShapes:
    """Block tables have one width, since a program reads of a row's table what the row has. Rows with a prompt lie
    behind one another, beside those that decode."""
    scheduler = config.scheduler
    return BucketedShapes(
        decode_rows=sizes(FEWEST_ROWS, scheduler.max_num_seqs),
        prompt_tokens=sizes(FEWEST_TOKENS, max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)),
        prompt_rows=scheduler.max_num_seqs,
        packed=True,
        blocks=(ANY,),
        max_decode_tokens=scheduler.max_decode_tokens,
    )


def sizes(smallest: int, largest: int) -> Sequence[int]:
    """From the smallest on, each STEP times the one before, up to the largest."""
    steps = []
    while smallest < largest:
        steps.append(smallest)
        smallest *= STEP
    return (*steps, largest)
