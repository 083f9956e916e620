"""Tests of sparse attention: the launches, and the layers of a backend of indexers, and of one of latent attention over
selected tokens, over a cache in which every slot that was not written holds NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from tessera.ops import RotarySpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import IndexerLayerSpec, IndexSpec, SparseLatentLayerSpec
from tessera.platform.launch import Launch
from tessera.platform.sparse_attention import IndexerBackend, IndexerLayer, SparseLatentBackend, SparseLatentLayer
from tessera.testing.attention import BlockTrial, LaunchCase, rows_by_kind
from tessera.testing.latent import LatentHeadsCase, LatentTrial

LIMIT = 11  # tokens that are selected: fewer than most rows have, and no size of a block
_NOWHERE = 1 << 30  # what padding selects: a position that no token has


@dataclass(frozen=True)
class IndexerCase(LaunchCase):
    """One launch to test. whole: queries, keys and weights are small whole numbers, so that many scores are equal and
    every way of computing them is exact."""

    heads: int = 10
    dim: int = 14
    limit: int = LIMIT
    hidden: int = 36
    turned: int = 6  # elements of queries and keys that are turned
    style: str = ""  # of the rotary embedding (RotarySpec); "": there is none
    whole: bool = False

    @property
    def cache_dtype(self) -> str:
        """The dtype of the keys in the cache."""
        return self.dtype

    @property
    def cache(self) -> IndexSpec:
        """What the layer keeps."""
        return IndexSpec(self.dim, self.dtype)

    def spec(self) -> IndexerLayerSpec:
        rotary = RotarySpec(self.dim, self.turned, self.style) if self.style else None
        scale = 0.25 if self.whole else (self.heads * self.dim) ** -0.5
        return IndexerLayerSpec(0, self.heads, self.hidden, self.limit, scale, self.dtype, self.cache, rotary)


@dataclass(frozen=True)
class SparseLatentCase(LatentHeadsCase):
    """One launch to test. A query of a token whose position is a multiple of 3 has one selected token less, if it has
    several."""

    limit: int = LIMIT

    def spec(self) -> SparseLatentLayerSpec:
        return SparseLatentLayerSpec(**self.shape, limit=self.limit)


INDEXER_SIZES: tuple[Mapping[str, int], ...] = tuple(
    {"heads": heads, "dim": dim, "turned": turned} for heads, dim, turned in ((10, 14, 6), (16, 64, 32), (32, 128, 64))
)
"""Sizes to choose from if a backend does not support the first: powers of two, then those of published models."""


def indexer_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, IndexerCase]]:
    """Cases by name."""
    yield from _launches(IndexerCase(((1, 1),), block_size, dtype=dtype))
    mixed = IndexerCase(rows_by_kind(block_size)["mixed"], block_size, dtype=dtype)
    yield "mixed-one-head", replace(mixed, heads=1)
    yield "mixed-equal-scores", replace(mixed, whole=True)
    yield "mixed-all-tokens", replace(mixed, limit=100)


def sparse_latent_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, SparseLatentCase]]:
    """Cases by name."""
    yield from _launches(SparseLatentCase(((1, 1),), block_size, dtype=dtype))
    mixed = SparseLatentCase(rows_by_kind(block_size)["mixed"], block_size, dtype=dtype)
    yield "mixed-one-token", replace(mixed, limit=1)
    yield "mixed-all-tokens", replace(mixed, limit=100)


_Case = TypeVar("_Case", bound=LaunchCase)


def _launches(plain: _Case) -> Iterator[tuple[str, _Case]]:
    """Every kind of launch, with gaps between rows, over shared blocks, and of many tokens and rows."""
    size = plain.block_size
    for kind, rows in rows_by_kind(size).items():
        yield f"{kind}-plain", replace(plain, rows=rows, verifies=kind == "verify")
    mixed = rows_by_kind(size)["mixed"]
    yield "mixed-spaced", replace(plain, rows=mixed, stride=max(tokens for tokens, _ in mixed) + 2, padding=2)
    yield "mixed-padded", replace(plain, rows=mixed, padding=3)
    sharing = (1, 2 * size + 1), (1, 3 * size), (5, 2 * size + 5), (size, 4 * size)
    yield "shared", replace(plain, rows=sharing, shared=2)
    yield "long", replace(plain, rows=((1, 533), (1, 130), (9, 290), (133, 133)))
    yield "many-rows", replace(plain, rows=tuple((1, 1 + 7 * row % 50) for row in range(70)))


@dataclass
class IndexerTrial(BlockTrial):
    """Of an indexer. A row's queries have the weights of its heads behind them: [tokens, H, D + 1]."""

    backend: IndexerBackend
    case: IndexerCase

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.layer, IndexerLayer)

    def draw(self, random: torch.Generator) -> None:
        case, dtype = self.case, torch_dtype(self.case.dtype)

        def drawn(*shape: int) -> Tensor:
            if case.whole:
                return torch.randint(-2, 3, shape, generator=random).to(dtype)
            return torch.randn(shape, generator=random).to(dtype)

        self.keys = [drawn(length, case.dim) for _, length in case.rows]
        for row in self.keys[1:]:
            row[: case.shared * case.block_size] = self.keys[0][: case.shared * case.block_size]
        self.queries = [drawn(tokens, case.heads, case.dim + 1) for tokens, _ in case.rows]
        angles = torch.outer(torch.arange(64.0), 10.0 ** -torch.linspace(0, 1, case.turned // 2))
        self.drawn = {
            "head_weights": torch.randn(case.heads, case.hidden, generator=random),
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1),
        }

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {name: weight.to(self.target) for name, weight in self.drawn.items()}

    def write(self, launch: Launch, starts: list[int], ends: list[tuple[int, int, int]]) -> None:
        keys = self.laid(launch, starts, [self.keys[row][first:last] for first, last, row in ends])
        self.layer.write(keys, self.caches, launch.plans[0])

    def result(self, q: Tensor) -> Tensor:
        raise AssertionError("an indexer writes into no tensor that it is given")

    def attended(self, *, into_nan: bool = False) -> list[Tensor]:
        """For each row, what is selected for its queries: [tokens, limit] int32."""

        def select(both: Tensor, launch: Launch) -> Tensor:
            queries, weights = both[..., :-1].contiguous(), both[..., -1].float()
            selected: Tensor = self.layer.select(queries, weights, self.caches, launch.plans[0])
            return selected

        return self.by_row(self.queries, select)

    def expected(self) -> list[Tensor]:
        """The scores of each row [tokens, K] in float64, -inf for tokens that a query does not see."""
        found = []
        for both, kept in zip(self.queries, self.keys, strict=True):
            queries, weights = both[..., :-1].double(), both[..., -1].double()
            products = torch.einsum("qhd,kd->qhk", queries, kept.double()).clamp(min=0)
            scores = (weights[..., None] * products).sum(1) * self.case.spec().scale
            ahead = torch.arange(len(kept)) - torch.arange(len(kept) - len(both), len(kept))[:, None]
            found.append(scores.masked_fill(ahead > 0, -torch.inf))
        return found


@dataclass
class SparseLatentTrial(LatentTrial):
    """Of latent attention over selected tokens."""

    backend: SparseLatentBackend
    case: SparseLatentCase
    layer_type: ClassVar[type[Any]] = SparseLatentLayer

    def draw(self, random: torch.Generator) -> None:
        super().draw(random)
        self.selections = [self._drawn(tokens, length, random) for tokens, length in self.case.rows]

    def _drawn(self, tokens: int, length: int, random: torch.Generator) -> Tensor:
        """Of one row: [tokens, limit] int32, in no order."""
        limit, rows = self.case.limit, []
        for position in range(length - tokens, length):
            number = min(limit, position + 1)
            number -= position % 3 == 0 and number > 1
            places = torch.randperm(position + 1, generator=random)[:number]
            places = torch.cat((places, torch.full((limit - number,), -1)))
            rows.append(places[torch.randperm(limit, generator=random)])
        return torch.stack(rows).to(torch.int32)

    def together(self, queries: list[Tensor]) -> list[Tensor]:
        """Rows of any numbers [tokens, n], each with what is selected for its tokens behind it: [tokens, n + limit]
        float64, which holds both."""
        return [torch.cat((x.double(), y.double()), -1) for x, y in zip(queries, self.selections, strict=True)]

    def apart(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers in the dtype of activations, and the selection; that of padding is of tokens that do not
        exist."""
        numbers, selection = both[:, : -self.case.limit], both[:, -self.case.limit :]
        return numbers.to(torch_dtype(self.case.dtype)), selection.nan_to_num(_NOWHERE).to(torch.int32)

    def attended(self, *, into_nan: bool = False) -> list[Tensor]:
        def attend(both: Tensor, launch: Launch) -> Tensor:
            numbers, selection = self.apart(both)
            q = numbers.unflatten(1, (self.case.heads, -1))
            out = self.result(q).fill_(torch.nan) if into_nan else None
            mixed: Tensor = self.layer.attend(q, selection, self.caches, launch.plans[0], out)
            assert out is None or mixed is out, "the result is not the tensor given as out"
            return mixed

        return self.by_row(self.together([row.flatten(1) for row in self.queries]), attend)

    def unseen(self, row: int) -> Tensor:
        """[tokens, K], whether a token is not selected."""
        selection = self.selections[row]
        seen = torch.zeros(len(selection), self.case.rows[row][1] + 1, dtype=torch.bool)
        seen.scatter_(1, selection.long() + 1, value=True)
        return ~seen[:, 1:]
