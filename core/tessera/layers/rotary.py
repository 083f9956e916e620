"""Tables of cosines and sines for rotary embedding, with the scalings checkpoints declare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.errors import ModelError


@dataclass(frozen=True)
class Rope:
    """dim: rotated elements of a head. kind: "default", "linear" or "llama3", with its parameters as checkpoints name
    them."""

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any], dim: int) -> Rope:
        """From config.json, in its old form (rope_theta, rope_scaling) or its new one (rope_parameters). Raises
        ModelError for a scaling not served."""
        said = {**(checkpoint.get("rope_scaling") or {}), **(checkpoint.get("rope_parameters") or {})}
        kind = str(said.get("rope_type", said.get("type", "default")))
        if kind not in ("default", "linear", "llama3"):
            raise ModelError(f"rotary scaling '{kind}' is not served yet; default, linear and llama3 are.")
        theta = float(said.get("rope_theta", checkpoint.get("rope_theta") or 10000.0))
        numbers = {
            name: float(value)
            for name, value in said.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        return cls(dim, theta, kind, tuple(sorted(numbers.items())))


def frequencies(rope: Rope) -> Tensor:
    """[dim / 2] float32 radians a position."""
    inverse = 1.0 / rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    said = dict(rope.parameters)
    if rope.kind == "linear":
        return inverse / said["factor"]
    if rope.kind == "llama3":
        return _llama3(inverse, said)
    return inverse


def _llama3(inverse: Tensor, said: Mapping[str, float]) -> Tensor:
    """Long waves divided by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    factor, low, high = said["factor"], said["low_freq_factor"], said["high_freq_factor"]
    wavelength = 2 * math.pi / inverse
    original = said["original_max_position_embeddings"]
    smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * inverse / factor + smooth * inverse


def cos_sin(rope: Rope, positions: int) -> Tensor:
    """[positions, dim] float32: cosines, then sines."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies(rope))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
