"""How checkpoints store q, k and v: separately, one after the other in one tensor, or in one tensor by groups of heads;
and which rows of them this rank needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.linear import Bounds, WeightShard


@dataclass(frozen=True)
class Heads:
    """q, kv: the heads this rank needs, as (start, stop), of `heads` and `kv_heads` with head_dim rows each."""

    heads: int
    kv_heads: int
    head_dim: int
    q: Bounds
    kv: Bounds

    def rows(self, bounds: Bounds, first: int = 0) -> Bounds:
        """The rows of consecutive heads, if head 0 begins at row `first`."""
        return first + bounds[0] * self.head_dim, first + bounds[1] * self.head_dim


class QKVLayout(Protocol):
    """output: the name of the output projection."""

    @property
    def output(self) -> str: ...

    def sources(self, prefix: str, hidden: int, heads: Heads) -> list[WeightShard]:
        """The shards, in the order q, k, v."""


@dataclass(frozen=True)
class Apart:
    """Three separate tensors. key_bias: whether k has a bias where the others have."""

    output: str = "o_proj"
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    key_bias: bool = True

    def sources(self, prefix: str, hidden: int, heads: Heads) -> list[WeightShard]:
        wide, narrow = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
        beside = "" if self.key_bias else f"{prefix}.{self.v}"
        return [
            WeightShard(f"{prefix}.{self.q}", wide, hidden, heads.rows(heads.q)),
            WeightShard(f"{prefix}.{self.k}", narrow, hidden, heads.rows(heads.kv), bias_beside=beside),
            WeightShard(f"{prefix}.{self.v}", narrow, hidden, heads.rows(heads.kv)),
        ]


APART = Apart()


@dataclass(frozen=True)
class Joined:
    """One tensor: all rows of q, then those of k, then those of v."""

    name: str = "qkv_proj"
    output: str = "o_proj"

    def sources(self, prefix: str, hidden: int, heads: Heads) -> list[WeightShard]:
        wide, narrow = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
        rows = (
            heads.rows(heads.q),
            heads.rows(heads.kv, wide),
            heads.rows(heads.kv, wide + narrow),
        )
        return [WeightShard(f"{prefix}.{self.name}", wide + 2 * narrow, hidden, part) for part in rows]


@dataclass(frozen=True)
class Grouped:
    """One tensor: for each key head, the query heads that share it, then the key head, then its value head."""

    name: str = "query_key_value"
    output: str = "dense"

    def sources(self, prefix: str, hidden: int, heads: Heads) -> list[WeightShard]:
        total = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
        return [
            WeightShard(f"{prefix}.{self.name}", total, hidden, heads.rows((head, head + count)))
            for head, count in _grouped(heads)
        ]


def _grouped(heads: Heads) -> Iterator[tuple[int, int]]:
    """Yields (first head, number of heads) within the grouped tensor."""
    served = heads.heads // heads.kv_heads
    group = served + 2
    at = heads.q[0]
    while at < heads.q[1]:
        count = min(served - at % served, heads.q[1] - at)
        yield at // served * group + at % served, count
        at += count
    for place in (served, served + 1):
        for head in range(*heads.kv):
            yield head * group + place, 1


def kv_heads_of(build: Build, heads: int) -> Bounds:
    """This rank's key/value heads. If there are fewer heads than ranks, several ranks share a head."""
    ranks = build.group.size
    if ranks > heads:
        if ranks % heads:
            raise ModelError(
                f"--tensor-parallel-size {ranks} is not a multiple of the number of key/value heads ({heads})."
            )
        head = build.group.rank * heads // ranks
        return head, head + 1
    return build.shard(heads, "the number of key/value heads")
