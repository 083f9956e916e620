"""Decode attention of one layer, alone: the task for each kernel, and how it is timed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

COLD_BYTES = 2e8  # of keys and values to rotate through
SECONDS = 1.0
ATTENTION_SEED = 11


@dataclass(frozen=True)
class AttentionTask:
    """`batch` rows of one token each, with `context` keys in bfloat16, in blocks in random order."""

    heads: int
    kv_heads: int
    dim: int
    batch: int
    context: int
    threads: int

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values that a call reads."""
        return 4 * self.batch * self.context * self.kv_heads * self.dim

    @property
    def operations(self) -> int:
        """Multiplications and additions of a call."""
        return 4 * self.batch * self.context * self.heads * self.dim


@dataclass(frozen=True)
class LatentTask:
    """The same over latents in bfloat16, which all heads share (MLA)."""

    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    batch: int
    context: int
    threads: int

    @property
    def nbytes(self) -> int:
        """Bytes that a call reads: latents, and the weight that queries and sums are multiplied with."""
        latents = self.batch * self.context * (self.rank + self.rope)
        return 2 * (latents + self.heads * (self.nope + self.value) * self.rank)

    @property
    def operations(self) -> int:
        """Multiplications and additions of a call."""
        over_latents = self.context * (2 * self.rank + self.rope)
        return 2 * self.batch * self.heads * (over_latents + (self.nope + self.value) * self.rank)


_Task = TypeVar("_Task", AttentionTask, LatentTask)


def copies(task: AttentionTask | LatentTask) -> int:
    """The number of caches to rotate through, so that none is still in a processor cache."""
    return max(2, int(COLD_BYTES / task.nbytes))


def drive(kind: type[_Task], prepare: Callable[[_Task], Sequence[Callable[[], object]]]) -> None:
    """Reads a task from the command line and prints the seconds per call as JSON. prepare: returns the call for each
    copy."""
    calls = prepare(kind(**json.loads(sys.argv[1])))
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


def as_json(task: AttentionTask | LatentTask) -> str:
    return json.dumps(asdict(task))
