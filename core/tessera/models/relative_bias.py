"""Biases of scores by the distance between query and key, which are learned for buckets of distances (T5,
arXiv:1910.10683)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Parameter
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part


@dataclass(frozen=True)
class DistanceBuckets:
    """How distances are put in buckets. Of those that look back, one half has one distance each, the other ever wider
    ranges."""

    # Of all distances: an even number, of four or more where keys may come after their query.
    count: int
    # From it on all distances are in the last bucket. More than those that have buckets of their own.
    farthest: int
    # Whether no key comes after its query; otherwise half of the buckets are for those that do.
    causal: bool

    @property
    def reach(self) -> int:
        """Distances that differ, as LayerSpec.relative_reach."""
        return self.farthest + 1

    @property
    def exact(self) -> int:
        """Buckets of one distance, on each side."""
        return self.count // (2 if self.causal else 4)

    def by_distance(self) -> Tensor:
        """[reach] or [2 reach - 1] int64: the bucket of each key - query, as the weight "relative_bias" has them."""
        distance = torch.arange(1 - self.reach, 1 if self.causal else self.reach)
        each = self.count if self.causal else self.count // 2
        far = distance.abs().clamp(min=1).float()
        wide = torch.log(far / self.exact) / math.log(self.farthest / self.exact) * (each - self.exact)
        place = torch.where(distance.abs() < self.exact, distance.abs(), (self.exact + wide.long()).clamp(max=each - 1))
        return place if self.causal else place + (distance > 0) * each


def relative_bias(build: Build, name: str, heads: int, buckets: DistanceBuckets) -> Parameter:
    """The weight "relative_bias" of this rank's heads, from the checkpoint's [buckets, heads]."""
    part = Part(f"{name}.weight", (buckets.count, heads), columns=build.shard(heads, "the number of attention heads"))
    build.weights.skip(name, "a table by distance, which is no product")

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        weight = raw["weight"]
        table = weight[buckets.by_distance().to(weight.device)].T.float().contiguous()
        if into is None:
            return {"weight": table}
        into["weight"].copy_(table)
        return into

    return build.register_parameter(Parameter({"weight": [part]}, prepare))
