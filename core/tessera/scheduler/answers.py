"""Tokens that came of a step, and which of them end their request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array
from tessera.scheduler.outputs import FinishReason
from tessera.scheduler.rows import Rows
from tessera.scheduler.tracked import TrackedRequest


@dataclass(frozen=True)
class Ending:
    """Why a request's newest token is its last. stop_token: one that it named itself."""

    request: TrackedRequest
    reason: FinishReason
    stop_token: int | None = None


class StopRules:
    """The model's end-of-text tokens, a request's own stop tokens, its length; all rows of a step at once."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos = frozenset(eos_token_ids)

    def endings(self, rows: Rows, drawn: Array, tokens: Array) -> list[Ending]:
        """Of rows that just got one token each."""
        ending = rows.num_tokens.take(drawn) >= rows.max_total.take(drawn)
        for token in self._eos:
            ending |= tokens == token
        if rows.num_naming:
            ending |= rows.has_stop_ids[drawn]
        if not ending.any():
            return []
        places = np.flatnonzero(ending)
        newest = zip(drawn[places].tolist(), tokens[places].tolist(), strict=True)
        found = [self._ending(rows, row, token) for row, token in newest]
        return [end for end in found if end is not None]

    def _ending(self, rows: Rows, row: int, token: int) -> Ending | None:
        """Of one row and its newest token."""
        request, total = rows.request(row), rows.num_tokens[row]
        if total >= rows.min_total[row]:
            if token in self._eos and not rows.ignores_eos[row]:
                return Ending(request, "stop")
            if token in (request.request.params.stop_token_ids or ()):
                return Ending(request, "stop", token)
        return Ending(request, "length") if total >= rows.max_total[row] else None
