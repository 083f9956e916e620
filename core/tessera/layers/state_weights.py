"""The weights of a mixer that keeps a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from tessera.layers.attention import LateWeights
from tessera.layers.build import Build
from tessera.layers.linear import Bounds
from tessera.layers.weights import Parameter
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part


def state_weights(
    build: Build, parts: Mapping[str, Sequence[Part]], elements: Mapping[str, Bounds] | None = None
) -> LateWeights:
    """By name, each joined from its parts: in float32, as the models' original code computes with them, and without the
    dimensions of size 1 that checkpoints have. elements: those to take of a vector that is not divided by rows."""
    weights = LateWeights()
    for name, joined in parts.items():
        whole = [replace(part, dtype="float32") for part in joined]
        prepare = partial(_flat, (elements or {}).get(name))
        weights.parameters[name] = build.register_parameter(Parameter({"weight": whole}, prepare))
    return weights


def _flat(elements: Bounds | None, raw: dict[str, Tensor], into: Packed | None) -> Packed:
    weight = raw["weight"].squeeze(1) if raw["weight"].dim() == 3 else raw["weight"]
    if elements is not None:
        weight = weight.flatten()[slice(*elements)]
    if into is None:
        return {"weight": weight.contiguous()}
    into["weight"].copy_(weight)
    return into
