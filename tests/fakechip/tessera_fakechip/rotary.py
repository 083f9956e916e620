"""Rotary position embeddings."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, Reason, RotarySpec


class Rotary(Kernel[RotarySpec]):
    def supports(self, spec: RotarySpec) -> Reason | None:
        return "not written yet"

    def bind(self, spec: RotarySpec, ops: BoundOps, device: Device) -> Any:
        def rotary(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
            """q [T, H, D] and k [T, Hk, D] in place; positions [T]; cos_sin [positions, dim], cosines then sines."""
            raise NotImplementedError

        return rotary
