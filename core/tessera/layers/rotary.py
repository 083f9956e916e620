"""Rotary embedding: tables of cosines and sines, and how their frequencies are scaled to reach further than a model was
trained for, in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """attention_factor: of cosines and sines. note: what a user should know of a choice that was made, or nothing."""

    @property
    def attention_factor(self) -> float: ...

    @property
    def note(self) -> str: ...

    def frequencies(self, theta: float, dim: int) -> Tensor:
        """[dim / 2] float32 radians a position."""


def unscaled(theta: float, dim: int) -> Tensor:
    """[dim / 2] float32 radians a position. RoFormer, arXiv:2104.09864."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


@dataclass(frozen=True)
class Linear:
    """All waves longer by `factor`. Position interpolation, arXiv:2306.15595."""

    factor: float
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        return unscaled(theta, dim) / self.factor


@dataclass(frozen=True)
class Llama3:
    """Long waves longer by `factor`, short ones kept, those between interpolated (Llama 3.1). original: tokens of
    training."""

    factor: float
    low: float
    high: float
    original: float
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        inverse = unscaled(theta, dim)
        wavelength = 2 * math.pi / inverse
        smooth = ((self.original / wavelength - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - smooth) * inverse / self.factor + smooth * inverse


@dataclass(frozen=True)
class Yarn:
    """Waves that turn more than `fast` times in the `original` tokens of training are kept, those that turn less than
    `slow` times are longer by `factor`, a ramp lies between. truncate: the ramp begins and ends at whole dimensions.
    YaRN, arXiv:2309.00071."""

    factor: float
    original: float
    attention_factor: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        inverse = unscaled(theta, dim)
        first, last = (self._dimension(turns, theta, dim) for turns in (self.fast, self.slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dim - 1)
        width = last - first or 0.001  # a step where both are one
        ramp = ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
        return inverse / self.factor * ramp + inverse * (1 - ramp)

    def _dimension(self, turns: float, theta: float, dim: int) -> float:
        """Whose wave turns so often in the tokens of training."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True)
class LongRope:
    """Each wave longer by a factor of its own. LongRoPE, arXiv:2402.13753."""

    factors: tuple[float, ...]
    attention_factor: float
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return 1.0 / (torch.tensor(self.factors, dtype=torch.float32) * theta**exponents)


@dataclass(frozen=True)
class Dynamic:
    """A greater theta, so that `length` tokens fit into what `original` took (NTK-aware), for one length once and for
    all."""

    factor: float
    original: float
    length: float
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        stretch = self.factor * self.length / self.original - (self.factor - 1)
        return unscaled(theta * stretch ** (dim / (dim - 2)), dim)


def yarn_attention_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """Where a checkpoint does not say it. The scales: 0 where they are left out."""

    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return of(mscale) / of(mscale_all_dim) if mscale and mscale_all_dim else of(1.0)


def longrope_attention_factor(factor: float, original: float) -> float:
    """Where a checkpoint does not say it."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


@dataclass(frozen=True)
class Rope:
    """dim: rotated elements of a head."""

    dim: int
    theta: float = 10000.0
    scaling: Scaling | None = None


def cos_sin(rope: Rope, positions: int, device: torch.device) -> Tensor:
    """[positions, dim] float32: cosines, then sines. device: the host's, or meta for the shape alone."""
    scaling = rope.scaling
    frequencies = unscaled(rope.theta, rope.dim) if scaling is None else scaling.frequencies(rope.theta, rope.dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), frequencies.to(device))
    # Into one table: for millions of positions it has gigabytes, and copies of it as many more.
    table = angles.new_empty(positions, rope.dim)
    cosines, sines = table.chunk(2, dim=-1)
    torch.cos(angles, out=cosines)
    torch.sin(angles, out=sines)
    return table if scaling is None else table.mul_(scaling.attention_factor)
