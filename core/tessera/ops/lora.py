"""LoRA adapters: what they add to the result of a product, for the tokens of several adapters at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.ops.tensors import DTYPES, HIDDEN, ROUNDED_ONCE
from tessera.platform.ops import Op, TrialInputs

__all__ = ["LoraSpec"]


@dataclass(frozen=True)
class LoraSpec:
    """y += scale (x A^T) B, with the adapter in each token's slot. layers: outputs of each linear layer that is
    joined into the product; each has its own `rank` rows of A, and its columns of B. k: inputs. slots: number of
    adapters that are loaded at once."""

    layers: tuple[int, ...]
    k: int
    rank: int
    slots: int
    dtype: str


def lora(spec: LoraSpec, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scales: Tensor, slots: Tensor) -> None:
    """y [T, sum of layers] act; x [T, k] act; a [slots, layers * rank, k] act; b [slots, rank, sum of layers] act;
    scales [slots] float32; slots [T] int32, the slot of each token, -1 for none -> nothing

    Adds to y in place, computed in float32 and rounded once. Hu et al., arXiv:2106.09685."""
    wide, result = x.float(), y.float()
    for slot in range(spec.slots):
        narrow = (wide @ a[slot].float().T).split(spec.rank, dim=1)
        parts = b[slot].float().split(spec.layers, dim=1)
        delta = torch.cat([low @ part for low, part in zip(narrow, parts, strict=True)], dim=1)
        result = torch.where((slots == slot)[:, None], result + scales[slot] * delta, result)
    y.copy_(result)


def _specs() -> Iterator[LoraSpec]:
    for dtype in DTYPES:
        yield LoraSpec((40,), 56, 8, 3, dtype)
        yield LoraSpec((72, 24, 24), 40, 5, 4, dtype)


def _large() -> Iterator[tuple[LoraSpec, int]]:
    """Ranks at which kernels change their path, more adapters than a tile has rows, and long sums."""
    for dtype in DTYPES:
        yield LoraSpec((40, 24), 56, 64, 3, dtype), 19
        yield LoraSpec((40,), 56, 17, 20, dtype), 40
        yield LoraSpec((40,), 2056, 16, 2, dtype), 3


def _inputs(spec: LoraSpec, make: TrialInputs) -> tuple[Any, ...]:
    n, rank = sum(spec.layers), len(spec.layers) * spec.rank
    return (
        make.normal(make.tokens, n, dtype=spec.dtype),
        make.normal(make.tokens, spec.k, dtype=spec.dtype),
        make.normal(spec.slots, rank, spec.k, dtype=spec.dtype, scale=1 / math.sqrt(spec.k)),
        make.normal(spec.slots, spec.rank, n, dtype=spec.dtype, scale=1 / math.sqrt(spec.rank)),
        make.normal(spec.slots).abs() + 0.5,
        make.integers(-1, spec.slots, make.tokens),
    )


OPS = (
    Op(
        "lora", "lora", lora,
        mutates=("y",), sample_specs=_specs, large_samples=_large, inputs=_inputs, tolerances=ROUNDED_ONCE,
        served_spec=lambda dtype: LoraSpec((HIDDEN,), HIDDEN, 16, 8, dtype),
    ),
)  # fmt: skip
