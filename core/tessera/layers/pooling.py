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


class Float32Parameter:
    """A weight of a head in float32, whole on every rank, and its bias. bias: its shape; None: there is none."""

    def __init__(self, build: Build, name: str, shape: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
        parts = {"weight": [Part(f"{name}.weight", shape, dtype="float32")]}
        if bias is not None:
            parts["bias"] = [Part(f"{name}.bias", bias, dtype="float32")]
        self.parameter = build.register_parameter(Parameter(parts, as_it_is))

    @property
    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        weights = self.parameter.packed
        return weights["weight"], weights.get("bias")


class Dense:
    """act(x W^T + b) in float32, whole on every rank: [n, k] -> [n, m]. name: in the checkpoint."""

    def __init__(
        self, build: Build, name: str, k: int, m: int, *, bias: bool = True, activation: str = "identity"
    ) -> None:
        self.parameter = Float32Parameter(build, name, (m, k), (m,) if bias else None)
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.activation(F.linear(x, *self.parameter.weight_and_bias))


def _dense(build: Build, config: DenseConfig) -> Dense:
    sizes = config.in_features, config.out_features
    name = config.name if config.inside else f"{config.name}.linear"
    return Dense(build, name, *sizes, bias=config.bias, activation=config.activation)


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
    """The heads of the tasks embed and token_embed that the model is to have, but those of sparse vectors; {} on
    pipeline stages but the last."""
    config = build.pooler
    if config is None or config.sparse or not build.is_last_stage:
        return {}
    wanted = [task for task in ("embed", "token_embed") if task in config.tasks]
    dense = [_dense(build, one) for one in config.dense] if wanted else []
    return {task: EmbeddingHead(config.pooling if task == "embed" else "all", dense) for task in wanted}


def as_it_is(raw: dict[str, Tensor], into: Packed | None) -> Packed:
    if into is None:
        return raw
    for name, tensor in raw.items():
        into[name].copy_(tensor)
    return into
