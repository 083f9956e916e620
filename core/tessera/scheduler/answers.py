"""Tokens that came of a step, and which of them end their request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array, int32
from tessera.scheduler.progress import FinishReason
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
        self._eos = int32(list(eos_token_ids))

    def endings(self, rows: Rows, drawn: Array, tokens: Array) -> list[Ending]:
        """Of rows that just got one token each."""
        totals = rows.num_tokens[drawn]
        may_stop = totals >= rows.min_total[drawn]
        eos = np.zeros(len(drawn), dtype=bool)
        for token in self._eos:
            eos |= tokens == token
        eos &= may_stop & ~rows.ignores_eos[drawn]
        long = totals >= rows.max_total[drawn]
        named = may_stop & rows.has_stop_ids[drawn]
        endings = []
        for place in np.flatnonzero(eos | long | named).tolist():
            request, token = rows.request(int(drawn[place])), int(tokens[place])
            if eos[place]:
                endings.append(Ending(request, "stop"))
            elif named[place] and token in (request.request.params.stop_token_ids or ()):
                endings.append(Ending(request, "stop", token))
            elif long[place]:
                endings.append(Ending(request, "length"))
        return endings
