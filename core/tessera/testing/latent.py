"""Tests of latent attention: the launches, and a backend's layer over a cache in which every slot that was not written
holds NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from tessera.ops import NormSpec, RotarySpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import LatentLayerSpec, LatentSpec
from tessera.platform.latent import LatentBackend, LatentLayer
from tessera.platform.launch import Launch
from tessera.platform.sparse_attention import SparseLatentBackend
from tessera.testing.attention import BlockTrial, LaunchCase, Rows, rows_by_kind


@dataclass(frozen=True)
class LatentHeadsCase(LaunchCase):
    """One launch to test, whichever tokens its queries see."""

    heads: int = 6
    rank: int = 20
    rope_dim: int = 6
    nope_dim: int = 12
    value_dim: int = 10
    style: str = ""  # of the rotary embedding (RotarySpec); "": there is none
    scale: float = 0.21  # of scores

    @property
    def cache_dtype(self) -> str:
        """The dtype of the latents in the cache."""
        return self.dtype

    @property
    def cache(self) -> LatentSpec:
        """What the layer keeps."""
        return LatentSpec(self.rank, self.rope_dim, self.dtype)

    @property
    def query_dim(self) -> int:
        """As of LatentHeadsSpec."""
        return self.nope_dim + self.rope_dim

    @property
    def shape(self) -> Mapping[str, Any]:
        """The fields of the layer's LatentHeadsSpec."""
        return {
            "layer": 0,
            "num_heads": self.heads,
            "nope_dim": self.nope_dim,
            "value_dim": self.value_dim,
            "scale": self.scale,
            "dtype": self.dtype,
            "cache": self.cache,
            "latent_norm": NormSpec(self.rank, self.dtype, 1e-6),
            "rotary": RotarySpec(self.rope_dim, self.rope_dim, self.style) if self.style else None,
        }


@dataclass(frozen=True)
class LatentCase(LatentHeadsCase):
    """Of queries that see all tokens up to their own."""

    def spec(self) -> LatentLayerSpec:
        return LatentLayerSpec(**self.shape)


SIZES: tuple[Mapping[str, Any], ...] = tuple(
    MappingProxyType(dict(zip(("rank", "rope_dim", "nope_dim", "value_dim"), sizes, strict=True)))
    for sizes in ((20, 6, 12, 10), (64, 16, 32, 32), (256, 32, 64, 64), (512, 64, 128, 128), (512, 64, 192, 256))
)
"""Sizes to choose from if a backend does not support the first: powers of two, then those of published models."""

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "plain": {},
        "one-head": {"heads": 1},
        "scaled": {"scale": 0.47},
        "wide-values": {"value_dim": 28},
        "padded": {"padding": 3},
    }
)
"""How each variant differs from the plain case, by name."""

_FEW: Rows = (1, 40), (1, 17), (21, 30)


def latent_cases(block_size: int = 16, dtype: str = "float32") -> Iterator[tuple[str, LatentCase]]:
    """Cases by name: every kind of launch, some in variants, with gaps between rows, over shared blocks, and of more
    keys, queries, rows and heads than fit the tiles at which kernels change their path."""
    for kind, rows in rows_by_kind(block_size).items():
        plain = LatentCase(rows, block_size, verifies=kind == "verify", dtype=dtype)
        for name, different in VARIANTS.items() if kind in ("decode", "mixed") else [("plain", VARIANTS["plain"])]:
            yield f"{kind}-{name}", replace(plain, **different)
        yield f"{kind}-spaced", replace(plain, stride=max(tokens for tokens, _ in rows) + 2, padding=2)
    size = block_size
    sharing = (1, 2 * size + 1), (1, 3 * size), (5, 2 * size + 5), (size, 4 * size)
    yield "shared", LatentCase(sharing, size, shared=2, dtype=dtype)
    yield "long", LatentCase(((1, 533), (1, 130), (9, 290), (133, 133)), size, dtype=dtype)
    yield "many-rows", LatentCase(tuple((1, 1 + 7 * row % 50) for row in range(70)), size, dtype=dtype)
    yield "one-row", LatentCase(((1, 4200),), size, dtype=dtype)
    yield "many-heads", LatentCase(_FEW, size, heads=72, dtype=dtype)
    yield "served", LatentCase(_FEW, size, heads=16, dtype=dtype, scale=192**-0.5, **SIZES[-2])


@dataclass
class LatentTrial(BlockTrial):
    """Of latent attention."""

    backend: LatentBackend | SparseLatentBackend
    case: LatentHeadsCase
    layer_type: ClassVar[type[Any]] = LatentLayer  # what the backend binds

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.layer, self.layer_type)

    def draw(self, random: torch.Generator) -> None:
        case, dtype = self.case, torch_dtype(self.case.dtype)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=random)

        self.latents = [drawn(length, case.rank + case.rope_dim).to(dtype) for _, length in case.rows]
        for row in self.latents[1:]:
            row[: case.shared * case.block_size] = self.latents[0][: case.shared * case.block_size]
        self.queries = [drawn(tokens, case.heads, case.query_dim).to(dtype) for tokens, _ in case.rows]
        up = drawn(case.heads, case.nope_dim + case.value_dim, case.rank) * case.rank**-0.5
        angles = torch.outer(torch.arange(64.0), 10.0 ** -torch.linspace(0, 1, case.rope_dim // 2))
        self.drawn = {
            "kv_up": up.to(dtype),
            "latent_norm": (0.5 + torch.rand(case.rank, generator=random)).to(dtype),
            "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=-1),
        }

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {name: weight.to(self.target) for name, weight in self.drawn.items()}

    def write(self, launch: Launch, starts: list[int], ends: list[tuple[int, int, int]]) -> None:
        latent = self.laid(launch, starts, [self.latents[row][first:last] for first, last, row in ends])
        self.layer.write(latent, self.caches, launch.plans[0])

    def result(self, q: Tensor) -> Tensor:
        return q.new_empty(*q.shape[:2], self.case.value_dim)

    def expected(self) -> list[Tensor]:
        """With the key and the value of each head and token."""
        case, up = self.case, self.drawn["kv_up"].double()
        found = []
        for row, (queries, latents) in enumerate(zip(self.queries, self.latents, strict=True)):
            whole = latents.double()
            heads = whole[:, : case.rank] @ up.mT  # [H, K, nope_dim + value_dim]
            turned = whole[None, :, case.rank :].expand(case.heads, -1, -1)
            keys = torch.cat((heads[..., : case.nope_dim], turned), dim=-1)
            scores = queries.double().transpose(0, 1) @ keys.mT * case.scale
            weights = scores.masked_fill(self.unseen(row), -torch.inf).softmax(-1)
            found.append((weights @ heads[..., case.nope_dim :]).transpose(0, 1))
        return found

    def unseen(self, row: int) -> Tensor:
        """[tokens, K], whether a query of the row does not see a token."""
        tokens, length = self.case.rows[row]
        return torch.arange(length) > torch.arange(length - tokens, length)[:, None]
