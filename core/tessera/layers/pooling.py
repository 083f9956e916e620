"""The heads of models that answer with numbers: what is done with a text's hidden states, for each task of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.config.pooler import DenseConfig
from tessera.layers.build import Build
from tessera.layers.weights import Parameter
from tessera.platform.model import PoolingHead
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"identity": lambda x: x, "tanh": torch.tanh, "gelu": F.gelu, "relu": torch.relu, "sigmoid": torch.sigmoid}
)


class Dense:
    """act(x W^T + b) in float32, whole on every rank: [n, in_features] -> [n, out_features]."""

    def __init__(self, build: Build, config: DenseConfig) -> None:
        name, n = f"{config.name}.linear", config.out_features
        parts = {"weight": [Part(f"{name}.weight", (n, config.in_features), dtype="float32")]}
        if config.bias:
            parts["bias"] = [Part(f"{name}.bias", (n,), dtype="float32")]
        self.parameter = build.register_parameter(Parameter(parts, _as_it_is))
        self.activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        weights = self.parameter.packed
        return self.activation(F.linear(x, weights["weight"], weights.get("bias")))


class EmbeddingHead:
    """The pooled hidden states, through the model's Dense modules. pooling: which states; "all" for those of each
    token."""

    def __init__(self, pooling: str, dense: list[Dense]) -> None:
        self.pooling, self.dense = pooling, dense

    def each(self, states: Tensor) -> Tensor:
        return states

    def __call__(self, pooled: Tensor) -> Tensor:
        for layer in self.dense:
            pooled = layer(pooled)
        return pooled


def embedding_heads(build: Build) -> dict[str, PoolingHead]:
    """The heads of the tasks embed and token_embed that the model is to have; {} on pipeline stages but the last."""
    config = build.pooler
    if config is None or not build.is_last_stage:
        return {}
    wanted = [task for task in ("embed", "token_embed") if task in config.tasks]
    build.notes += config.notes
    dense = [Dense(build, one) for one in config.dense] if wanted else []
    return {task: EmbeddingHead(config.pooling if task == "embed" else "all", dense) for task in wanted}


def _as_it_is(raw: dict[str, Tensor], into: Packed | None) -> Packed:
    if into is None:
        return raw
    for name, tensor in raw.items():
        into[name].copy_(tensor)
    return into
