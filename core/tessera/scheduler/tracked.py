"""A request inside the scheduler: what is not in its row's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.arrays import Array
from tessera.kvcache.prefix_cache import HashChain
from tessera.request import Request

if TYPE_CHECKING:
    from tessera.scheduler.rows import Rows

NO_ROW = -1


class TrackedRequest:
    """A request from add() to its end; the RequestView that policies and resources see.

    order: its place in the order of arrival. rank, queue: what the policy said of it. row: NO_ROW while it waits.
    tokens: all it has, prompt and answer, as of when it last had no row; what came since is in the row. started: it had
    a place already. refused_at: how things stood when there last were too few blocks for it.
    """

    __slots__ = ("_rows", "chain", "order", "queue", "rank", "refused_at", "request", "row", "started", "tokens")

    def __init__(self, request: Request, order: int, chain: HashChain | None, rows: Rows) -> None:
        self.request = request
        self.order = order
        self.rank = 0.0
        self.queue = ""
        self.chain = chain
        self.row = NO_ROW
        self.tokens: Array = request.prompt
        self.refused_at: tuple[int, int] | None = None
        self.started = False
        self._rows = rows

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def prompt_tokens(self) -> int:
        """Of its prompt that wait to be computed, before the cache was asked: of a shared one the last."""
        return self.num_prompt_tokens if self.request.leader < 0 else 1

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) if self.row == NO_ROW else int(self._rows.num_tokens[self.row])

    @property
    def reads_cache(self) -> bool:
        """Whether it may start from a prefix that others computed: not while each token of its prompt is asked for."""
        return self.request.params.prompt_logprobs is None or len(self.tokens) > self.num_prompt_tokens

    @property
    def num_computed_tokens(self) -> int:
        return 0 if self.row == NO_ROW else int(self._rows.num_computed_tokens[self.row])

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def arrival(self) -> float:
        return self.request.arrival

    @property
    def adapter(self) -> str:
        return self.request.adapter

    @property
    def tenant(self) -> str:
        return self.request.tenant
