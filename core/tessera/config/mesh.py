"""The workers of an engine as a mesh of named axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal, TypeVar

G = TypeVar("G")
Axis = Literal["data", "pipeline", "context", "expert", "tensor"]
"""What the workers along an axis divide among them: requests, layers, positions, experts, or the weights of each
layer."""


@dataclass(frozen=True)
class Mesh:
    """sizes: workers along each axis, the outermost axis first. Ranks count along the innermost axis first: with
    {"pipeline": 2, "tensor": 2}, ranks 0 and 1 are the first stage. along: axes that have no workers of their own, each
    with the axis whose workers divide among them what it names."""

    sizes: Mapping[Axis, int]
    along: Mapping[Axis, Axis] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of workers."""
        return prod(self.sizes.values())

    def place(self, axis: Axis, rank: int) -> int:
        """Where a worker is along an axis, from 0."""
        return rank // self._stride(axis) % self.sizes[axis]

    def group(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The ranks that differ from a worker's along this axis alone, its own among them, in the order of the axis."""
        stride = self._stride(axis)
        first = rank - self.place(axis, rank) * stride
        return tuple(first + place * stride for place in range(self.sizes[axis]))

    def groups(self, make: Callable[[Axis], G]) -> dict[str, G]:
        """What `make` makes for each axis with workers of its own, by the names of all axes."""
        groups: dict[str, G] = {axis: make(axis) for axis in self.sizes}
        return groups | {axis: groups[workers] for axis, workers in self.along.items()}

    def _stride(self, axis: Axis) -> int:
        """Between the ranks of neighbours along an axis."""
        axes = list(self.sizes)
        return prod(self.sizes[inner] for inner in axes[axes.index(axis) + 1 :])
