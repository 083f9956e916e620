"""The weights of a checkpoint for a platform's own model runner: those of linear layers in the scheme that the
checkpoint or --quantization says, all others as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.layers.weights import Parameter
from tessera.loader.load import load_weights
from tessera.loader.source import CheckpointWeights
from tessera.ops import REFERENCE, LinearSpec
from tessera.platform.device import Arena, HostDevice, MemoryFigures
from tessera.platform.ops import BoundOps, Packed
from tessera.platform.quantization import Part, ReadWeight
from tessera.quantization.weights import Weights


def stored_weights(
    source: CheckpointWeights,
    linear_layers: Mapping[str, tuple[int, int]],
    weights: Weights,
    dtype: str,
) -> Iterator[ReadWeight]:
    """See RunnerServices.stored_weights. dtype: the model's."""
    host = HostDevice(torch, MemoryFigures(0, 0, host=True))
    ops, arena = BoundOps(REFERENCE, host), Arena("weights")
    for name, (k, n) in linear_layers.items():
        part = Part(f"{name}.weight", (n, k))
        (chosen,) = weights.choose(LinearSpec(n, k, dtype), [[part]], ops)
        scheme, convert = chosen.spec.scheme, chosen.convert

        def prepare(raw: dict[str, Tensor], into: Packed | None, convert: Any = convert) -> Packed:
            if convert is not None:
                convert(raw)
            return raw

        parameter = Parameter({name: joins[0] for name, joins in chosen.parts.items()}, prepare)
        load_weights([parameter], source, dtype, host, arena, lambda progress: None)
        yield ReadWeight(part.name, parameter.packed, scheme)
    for name in source.names():
        layer, _, last = name.rpartition(".")
        if layer not in linear_layers or last == "bias":
            yield ReadWeight(name, {"weight": source.whole(name)})
    source.release()
