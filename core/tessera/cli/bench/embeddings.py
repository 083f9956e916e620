"""The workload of `tessera bench embed`: requests of several texts each, and how one is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.cli.bench.drive import Clock, Exchange, Record
from tessera.cli.bench.workload import PromptLengths, draw_prompts
from tessera.cli.client import Embedder, Prompt
from tessera.cli.client.vectors import counted_tokens


@dataclass(frozen=True)
class EmbeddingJob:
    """The texts of one request: themselves or their token ids."""

    inputs: Sequence[Prompt]


class EmbeddingExchange(Exchange[EmbeddingJob]):
    """Asks for vectors, whose numbers are not read. A record's one time is that of the whole answer."""

    def __init__(self, embedder: Embedder, fields: Mapping[str, Any]) -> None:
        """fields: of every request besides its texts."""
        self._embedder = embedder
        self._fields = fields

    def record(self, job: EmbeddingJob) -> Record:
        ids = sum(len(one) for one in job.inputs if not isinstance(one, str))
        return Record(ids, 0, num_prompts=len(job.inputs))

    async def run(self, job: EmbeddingJob, record: Record, clock: Clock) -> None:
        answer = await self._embedder.post_embeddings(job.inputs, self._fields)
        received = clock()
        counted = counted_tokens(answer, len(job.inputs))
        record.received.append(received)
        if counted is not None:
            record.prompt_len = counted


def draw_jobs(
    lengths: PromptLengths, count: int, batch_size: int, *, vocabulary: Array, seed: tuple[int, ...]
) -> list[EmbeddingJob]:
    """Random token ids. count: of texts. batch_size: texts in one request; the last one may have fewer."""
    return _jobs(draw_prompts(np.random.default_rng(seed), lengths, count, vocabulary), batch_size)


def repeat_jobs(texts: Sequence[str], count: int, batch_size: int) -> list[EmbeddingJob]:
    """The texts, from the first again as often as `count` needs."""
    return _jobs(list(islice(cycle(texts), count)), batch_size)


def _jobs(inputs: Sequence[Prompt], batch_size: int) -> list[EmbeddingJob]:
    return [EmbeddingJob(inputs[start : start + batch_size]) for start in range(0, len(inputs), batch_size)]
