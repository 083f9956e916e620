"""The weights of a mixer that keeps a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from tessera.layers.attention import LateWeights
from tessera.layers.build import Build
from tessera.layers.weights import Parameter
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part


def state_weights(build: Build, parts: Mapping[str, Sequence[Part]]) -> LateWeights:
    """By name, each joined from its parts: in float32, as the models' original code computes with them."""
    weights = LateWeights()
    for name, joined in parts.items():
        whole = [replace(part, dtype="float32") for part in joined]
        weights.parameters[name] = build.register_parameter(Parameter({"weight": whole}, _flat))
    return weights


def _flat(raw: dict[str, Tensor], into: Packed | None) -> Packed:
    """The weight of a depthwise convolution [channels, 1, kernel] without the 1."""
    weight = raw["weight"].squeeze(1) if raw["weight"].dim() > 1 else raw["weight"]
    if into is None:
        return {"weight": weight.contiguous()}
    into["weight"].copy_(weight)
    return into
