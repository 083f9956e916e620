"""How the tokens of a step are shared out among rows: the budget and what the device allows a step to hold."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array
from tessera.config.engine import SchedulerConfig
from tessera.errors import ConfigError
from tessera.platform.launch import StepRules
from tessera.scheduler.rows import Work


class TokenBudget:
    """budget: tokens of a step. max_tokens_per_request: tokens of one request in a step. whole: prompts are not cut.
    chunk_multiple: where they may be cut. max_prefill_rows: rows with more than one token."""

    def __init__(self, config: SchedulerConfig, rules: StepRules, *, whole: bool, max_model_len: int) -> None:
        self.budget = config.max_num_batched_tokens
        self.whole = whole
        self.chunk_multiple = rules.chunk_multiple
        self.max_prefill_rows = self.budget if rules.max_prefill_rows is None else rules.max_prefill_rows
        self.max_tokens_per_request = min(self.budget, rules.max_tokens_per_request or self.budget)
        self._check(max_model_len)

    def _check(self, max_model_len: int) -> None:
        most = f"a step takes {self.max_tokens_per_request} tokens of one request; raise --max-num-batched-tokens"
        field = "scheduler.max_num_batched_tokens"
        if self.whole and self.max_tokens_per_request < max_model_len:
            raise ConfigError(
                f"A prompt of up to {max_model_len} tokens is not cut, but {most} or lower --max-model-len.",
                param=field,
            )
        if self.max_tokens_per_request < self.chunk_multiple:
            raise ConfigError(f"Prompts are cut at multiples of {self.chunk_multiple} tokens, but {most}.", param=field)

    def chunk(self, start: int, left: int, room: int) -> int:
        """How many of the `left` tokens from `start` on are computed next where there is room for so many; 0 where no
        cut is allowed there."""
        room = min(room, self.max_tokens_per_request)
        if left <= room:
            return left
        if self.whole:
            return 0
        return max(0, (start + room) // self.chunk_multiple * self.chunk_multiple - start)

    def share(self, work: Work, room: int, num_prefills: int) -> Array:
        """Tokens of each row, in order of precedence: one for each row that has one left, the rest of the room for
        prompts. The first prompt always gets a chunk, so that it goes on however many rows decode. num_prefills: rows
        with more than one token that the step holds already."""
        left = work.left
        if work.decodes and len(left) <= room:
            return left
        decodes = left == 1
        prefills = np.flatnonzero(~decodes)[: self.max_prefill_rows - num_prefills].tolist()
        reserved = 0
        if prefills:
            first = int(left[prefills[0]])
            reserved = min(first, first if self.whole else self.chunk_multiple)
        tokens = np.zeros(len(left), dtype=np.int32)
        tokens[np.flatnonzero(decodes)[: max(room - reserved, 0)]] = 1
        room -= int(tokens.sum())
        for place in prefills:
            tokens[place] = self.chunk(int(work.starts[place]), int(left[place]), room)
            room -= int(tokens[place])
        return tokens
