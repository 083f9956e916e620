"""Rows of an attention case as the steps and launches that a platform asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tessera.platform.launch import LaunchShape, ShapePolicy, StepRules, StepShape
from tessera.testing.attention_cases import Rows

Grant = tuple[int, int, int]
"""Tokens to compute, tokens in the cache after, row."""


@dataclass(frozen=True)
class Shaping:
    """A platform's shape policy, and what it lets a step hold."""

    policy: ShapePolicy
    rules: StepRules

    def allowed(self, rows: Rows) -> Rows:
        """Rows whose chunks begin where the rules let a prompt be cut."""
        multiple = self.rules.chunk_multiple
        return tuple(
            (tokens if tokens == 1 else tokens + (length - tokens) % multiple, length) for tokens, length in rows
        )

    def launches(self, grants: Sequence[Grant], block_size: int) -> Iterator[tuple[list[Grant], LaunchShape]]:
        """The grants cut into steps, and these into launches, in an order in which each token follows those before."""
        for step in self._steps(grants):
            tokens, lengths = (np.array(column, np.int32) for column in list(zip(*step, strict=True))[:2])
            decode = sum(count == 1 for count in tokens)
            for shape in self.policy.launches(StepShape(decode, tokens, lengths, -(-lengths // block_size))):
                yield step[shape.first : shape.last], shape

    def _steps(self, grants: Sequence[Grant]) -> Iterator[list[Grant]]:
        cut = [list(self._pieces(grant)) for grant in grants]
        for wave in range(max(map(len, cut))):
            pieces = [row[wave] for row in cut if wave < len(row)]
            yield from self._side_by_side(
                [grant for grant in pieces if grant[0] == 1], [grant for grant in pieces if grant[0] > 1]
            )

    def _pieces(self, grant: Grant) -> Iterator[Grant]:
        """Each of no more tokens than a step may have of a row."""
        tokens, length, row = grant
        most = self.rules.max_tokens_per_request or tokens
        most = max(most - most % self.rules.chunk_multiple, 1)
        done = length - tokens
        while done < length:
            end = min(done + most, length)
            yield end - done, end, row
            done = end

    def _side_by_side(self, decode: list[Grant], prefill: list[Grant]) -> Iterator[list[Grant]]:
        """Rows that decode first; as many of each as a step may hold."""
        rules = self.rules
        most = rules.max_rows or len(decode) + len(prefill)
        few = min(rules.max_prefill_rows or most, most)
        while decode or prefill:
            step, decode = decode[:most], decode[most:]
            if rules.mix_prefill_decode or not step:
                room = min(few, most - len(step))
                step, prefill = step + prefill[:room], prefill[room:]
            yield step
