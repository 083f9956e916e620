"""Rotary embedding: tables of cosines and sines, and the scaling of their frequencies for contexts longer than in
training. All in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Scaling(Protocol):
    """attention_factor: multiplies cosines and sines. note: what a user should know about the choice made, or ""."""

    @property
    def attention_factor(self) -> float: ...

    @property
    def note(self) -> str: ...

    def frequencies(self, theta: float, dim: int) -> Tensor:
        """[dim / 2] float32, radians per position."""


def unscaled(theta: float, dim: int) -> Tensor:
    """[dim / 2] float32, radians per position. RoFormer, arXiv:2104.09864."""
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


@dataclass(frozen=True)
class LinearScaling:
    """All wavelengths times `factor`. Position interpolation, arXiv:2306.15595."""

    factor: float
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        return unscaled(theta, dim) / self.factor


@dataclass(frozen=True)
class Llama3:
    """Long wavelengths times `factor`, short ones unchanged, interpolated in between (Llama 3.1). original: context
    length of training."""

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
    """Wavelengths that turn more than `fast` times within `original` (the context length of training) are unchanged,
    those that turn less than `slow` times are multiplied by `factor`, with a ramp in between. truncate: the ramp begins
    and ends at whole dimensions. YaRN, arXiv:2309.00071."""

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
        width = last - first or 0.001  # a step if both are equal
        ramp = ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
        return inverse / self.factor * ramp + inverse * (1 - ramp)

    def _dimension(self, turns: float, theta: float, dim: int) -> float:
        """The dimension whose wave turns that many times within the context length of training."""
        return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True)
class LongRope:
    """Each wavelength times its own factor. LongRoPE, arXiv:2402.13753."""

    factors: tuple[float, ...]
    attention_factor: float
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        return 1.0 / (torch.tensor(self.factors, dtype=torch.float32) * theta**exponents)


@dataclass(frozen=True)
class Dynamic:
    """NTK-aware scaling: a larger theta, so that `length` tokens fit where `original` did. Fixed for one length."""

    factor: float
    original: float
    length: float
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        stretch = self.factor * self.length / self.original - (self.factor - 1)
        return unscaled(theta * stretch ** (dim / (dim - 2)), dim)


@dataclass(frozen=True)
class Proportional:
    """The first `share` of the pairs of elements turn, as if all did, but `factor` times as slow; the others do not."""

    share: float
    factor: float = 1.0
    attention_factor: float = 1.0
    note: str = ""

    def frequencies(self, theta: float, dim: int) -> Tensor:
        turning = torch.arange(dim // 2) < int(self.share * dim // 2)
        return torch.where(turning, unscaled(theta, dim) / self.factor, 0.0)


def yarn_attention_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """The default if a checkpoint has none. mscale, mscale_all_dim: 0 if omitted."""
    if not (mscale and mscale_all_dim):
        return mscale_factor(factor, 1.0)
    return mscale_factor(factor, mscale) / mscale_factor(factor, mscale_all_dim)


def mscale_factor(factor: float, weight: float) -> float:
    """What queries, or keys, are multiplied by in a context `factor` times as long as in training (YaRN)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_attention_factor(factor: float, original: float) -> float:
    """The default if a checkpoint has none."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


@dataclass(frozen=True)
class Rope:
    """dim: the number of elements of a head that are rotated. axes: for each pair of them, the axis whose position
    turns it: 0 is time, 1 height, 2 width in an image or video; of text all three are one. () if there is one axis.
    M-RoPE, arXiv:2409.12191."""

    dim: int
    theta: float = 10000.0
    scaling: Scaling | None = None
    axes: tuple[int, ...] = ()


def cos_sin(rope: Rope, positions: int, device: torch.device) -> Tensor:
    """[positions, dim] float32: cosines, then sines. device: the host, or meta for the shape alone."""
    scaling = rope.scaling
    frequencies = unscaled(rope.theta, rope.dim) if scaling is None else scaling.frequencies(rope.theta, rope.dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), frequencies.to(device))
    # Write into one table: for millions of positions it takes gigabytes, and so would each copy.
    table = angles.new_empty(positions, rope.dim)
    cosines, sines = table.chunk(2, dim=-1)
    torch.cos(angles, out=cosines)
    torch.sin(angles, out=sines)
    return table if scaling is None else table.mul_(scaling.attention_factor)


class AxisTable:
    """A table of cos_sin() of which the rows behind those of positions are written anew for each step: one for each
    token whose positions on the axes of its Rope differ. table: [positions + spare, dim]."""

    def __init__(self, axes: tuple[int, ...], table: Tensor, positions: int) -> None:
        self.table, self.positions = table, positions
        # For whoever exchanges tables: WorkerFeature.tensors().
        self.tensors: dict[str, Tensor] = {"cos_sin": table}
        # [dim / 2] int64.
        self.axes = torch.tensor(axes, device=table.device)

    def fill(self, positions: Tensor) -> None:
        """Writes the first spare rows. positions: [axes, tokens] int64."""
        half = len(self.axes)
        rows = positions.index_select(0, self.axes).t()
        spare = self.table[self.positions : self.positions + len(rows)]
        for start in (0, half):
            spare[:, start : start + half] = self.table[:, start : start + half].gather(0, rows)
