"""Products with weights, and the look-up of a token's row of one."""

from __future__ import annotations

from dataclasses import dataclass

from tessera.platform.quantization import Scheme


@dataclass(frozen=True)
class EmbeddingSpec:
    """weight[token] * scale. sharded: only rows start..start+rows of the vocabulary are here; other tokens give zeros,
    and the sum over the group is right."""

    rows: int
    n: int
    dtype: str
    start: int = 0
    sharded: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class LinearSpec:
    """y[T, n] = x[T, k] W^T + b. experts: W is [experts, n, k]."""

    n: int
    k: int
    dtype: str
    scheme: Scheme | None = None
    bias: bool = False
    experts: int = 0


@dataclass(frozen=True)
class PackedEmbeddingSpec:
    """Rows of a linear's weight, as numbers of its dtype, times scale: the embedding where the head has the same
    weight. A kernel takes a linear whose weight it can read as the platform's own linear packs it. start and sharded:
    as of an EmbeddingSpec."""

    linear: LinearSpec
    start: int = 0
    sharded: bool = False
    scale: float = 1.0
