"""Tables of cosines and sines for rotary embedding, with the scalings checkpoints declare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.errors import ModelError

NEEDED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""The scalings that are served, and what each must be told."""


@dataclass(frozen=True)
class Rope:
    """dim: rotated elements of a head. kind: one of NEEDED, with the parameters it needs as checkpoints name them."""

    dim: int
    theta: float = 10000.0
    kind: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any], dim: int) -> Rope:
        """From config.json, in its old form (rope_theta, rope_scaling) or its new one (rope_parameters). Raises
        ModelError for a scaling that is not served or lacks a number."""
        said = {**_object(checkpoint, "rope_scaling"), **_object(checkpoint, "rope_parameters")}
        kind = str(said.get("rope_type", said.get("type", "default")))
        if kind not in NEEDED:
            raise ModelError(f"rotary scaling '{kind[:40]}' is not served yet; {', '.join(NEEDED)} are.")
        if said.get("partial_rotary_factor", checkpoint.get("partial_rotary_factor")) not in (None, 1, 1.0):
            raise ModelError("a partial_rotary_factor below 1 is not served for this architecture.")
        theta = said.get("rope_theta", checkpoint.get("rope_theta"))
        return cls(
            dim,
            10000.0 if theta is None else _positive("rope_theta", theta),
            kind,
            tuple((name, _positive(name, said.get(name))) for name in NEEDED[kind]),
        )


def _object(checkpoint: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = checkpoint.get(name) or {}
    if not isinstance(value, Mapping):
        raise ModelError(f"{name} in config.json is not an object.")
    return value


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ModelError(f"{name} of the rotary embedding {_fault(value)} in config.json.")
    return float(value)


def _fault(value: Any) -> str:
    return "is missing" if value is None else "is not a positive number"


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
