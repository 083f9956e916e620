"""Computes log probabilities of prompt tokens, each from the hidden state of the token before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from tessera.ops import LogprobsSpec
from tessera.platform.device import Device, Future
from tessera.platform.model import Model
from tessera.platform.ops import HotCall
from tessera.runner.input_batch import CoreInputBatch
from tessera.runner.launch_builder import PreparedLaunch
from tessera.step import PromptLogprobs

TOKENS_AT_ONCE = 32
"""How many prompt tokens' logits are computed together, so that a long prompt takes no more memory than a short one."""


@dataclass(frozen=True)
class Scoring:
    """The future of the log probabilities of some prompt tokens of one row. count: number of tokens; the rest is
    padding. logprobs: number of alternatives that the request asks for."""

    row: int
    start: int
    count: int
    logprobs: int
    parts: tuple[Future[Any], ...]

    def done(self) -> bool:
        return all(part.done() for part in self.parts)

    def result(self) -> PromptLogprobs:
        ids, logprobs, ranks = (part.result()[: self.count] for part in self.parts)
        kept = slice(self.logprobs + 1)
        return PromptLogprobs(self.row, self.start, ids[:, kept], logprobs[:, kept], ranks)


class PromptScorer:
    """Computes the log probabilities of prompt tokens. bind: binds the op `logprobs` for a number of alternatives."""

    def __init__(
        self, model: Model, batch: CoreInputBatch, device: Device, bind: Callable[[LogprobsSpec], HotCall]
    ) -> None:
        self.model, self.batch, self.device, self.bind = model, batch, device, bind

    def __call__(self, hidden: Tensor, prepared: PreparedLaunch) -> Iterator[Scoring]:
        """Launches scoring for all rows of a launch that ask for it. hidden [T, hidden size]: the hidden states of all
        tokens of the launch, after the final norm."""
        for place in prepared.prompt_logprobs.tolist():
            row, start = int(prepared.rows[place]), int(prepared.starts[place])
            known = min(int(prepared.next_position[place]), int(self.batch.sampling.num_prompt_tokens[row]) - 1)
            for first in range(start, known, TOKENS_AT_ONCE):
                count = min(TOKENS_AT_ONCE, known - first)
                at = int(prepared.first[place]) + first - start
                yield self._score(row, first + 1, count, hidden, at)

    def _score(self, row: int, start: int, count: int, hidden: Tensor, at: int) -> Scoring:
        """Scores tokens start to start + count (exclusive) of a row; hidden[at] is the state before the first."""
        index, tokens = np.zeros((2, TOKENS_AT_ONCE), np.int32)
        index[:count] = np.arange(at, at + count)
        tokens[:count] = self.batch.tokens[row, start : start + count]
        asked = int(self.batch.sampling.prompt_logprobs[row])
        logits = self.model.logits(hidden[self.device.to_device(index)])
        scored = self.bind(LogprobsSpec(logits.shape[-1], asked))(logits, self.device.to_device(tokens))
        return Scoring(row, start, count, asked, tuple(self.device.to_host(part) for part in scored))
