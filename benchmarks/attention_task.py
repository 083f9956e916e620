"""Decode attention of one layer, alone: what is asked of each kernel, and how it is timed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

COLD_BYTES = 2e8  # of keys and values that are taken in turn
SECONDS = 1.0
ATTENTION_SEED = 11


@dataclass(frozen=True)
class AttentionTask:
    """batch rows of one token each with `context` keys in bfloat16, in blocks that lie in no order."""

    heads: int
    kv_heads: int
    dim: int
    batch: int
    context: int
    threads: int

    @property
    def nbytes(self) -> int:
        """Of the keys and values that a call reads."""
        return 4 * self.batch * self.context * self.kv_heads * self.dim

    @property
    def copies(self) -> int:
        """Caches that are taken in turn, so that none is still near."""
        return max(2, int(COLD_BYTES / self.nbytes))


def drive(prepare: Callable[[AttentionTask], Sequence[Callable[[], object]]]) -> None:
    """Reads a task from the command line, prints seconds of a call as JSON. prepare: the same call on each copy."""
    task = AttentionTask(**json.loads(sys.argv[1]))
    calls = prepare(task)
    for call in calls:
        call()
    took: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for call in calls:
            call()
        took.append((time.perf_counter() - start) / len(calls))
    print(json.dumps(statistics.median(took)))


def asked(task: AttentionTask) -> str:
    return json.dumps(asdict(task))
