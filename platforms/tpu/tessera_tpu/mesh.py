"""Where arrays are: whole on each device of a mesh, or divided among them for tensor parallelism (arXiv:1909.08053).

XLA divides the computation as the arrays are divided, and inserts the collectives. So a division only decides speed and
memory, and never a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Part

AXIS = "tensor"

BY_INPUTS = frozenset(
    {"o_proj", "down_proj", "out_proj", "dense", "dense_4h_to_h", "c_proj", "wo", "w2", "fc2", "output_layer"}
)
"""Last parts of the names of layers whose inputs the layers before them divided: their results are summed."""


class DeviceMesh:
    """One axis over all devices. size: how many."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.mesh, self.size = Mesh(np.array(devices), (AXIS,)), len(devices)

    @cached_property
    def whole(self) -> NamedSharding:
        """On each device."""
        return NamedSharding(self.mesh, Part())

    @cached_property
    def planes(self) -> NamedSharding:
        """Of keys and values [blocks, Hk, tokens, D]: by heads."""
        return NamedSharding(self.mesh, Part(None, AXIS))

    def weight(self, layer: str, shape: Sequence[int]) -> NamedSharding:
        """Of a part of a layer's weight, [n, k] or [experts, n, k], a bias or scales [n]. layer: its name in the
        checkpoint."""
        return NamedSharding(self.mesh, Part(*self._axes(layer, shape)))

    def _axes(self, layer: str, shape: Sequence[int]) -> list[str | None]:
        by_inputs = layer.rpartition(".")[2] in BY_INPUTS
        wanted = {
            1: () if by_inputs or "norm" in layer else (0,),
            2: (1,) if by_inputs else (0,),
            3: (0, 2) if by_inputs else (0, 1),  # whole experts, if they can be shared out
        }.get(len(shape), ())
        found = next((axis for axis in wanted if shape[axis] % self.size == 0), None)
        return [AXIS if axis == found else None for axis in range(len(shape))]
