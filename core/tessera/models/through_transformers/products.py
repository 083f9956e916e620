"""Products and the embedding of token ids, in the places of transformers' modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tessera.layers.build import Build
from tessera.layers.product import product_parameter
from tessera.layers.weights import Parameter
from tessera.models.through_transformers.anatomy import sizes
from tessera.models.through_transformers.names import CheckpointNames
from tessera.ops import EmbeddingSpec, LinearSpec


class Product(nn.Module):
    """[.., k] -> [.., n]: a bound linear op. weight: empty, for code that asks for its dtype or device. keep:
    why it is never quantised."""

    def __init__(self, build: Build, names: CheckpointNames, module: Any, *, keep: str = "") -> None:
        super().__init__()
        self.n, k = sizes(module)
        self.weight = torch.empty(0, dtype=module.weight.dtype, device=build.device.target)
        parts = {"weight": names.joins(module.weight)[0]}
        if module.bias is not None:
            parts["bias"] = names.joins(module.bias)[0]
        asked = LinearSpec(self.n, k, build.dtype, bias=module.bias is not None)
        turned = isinstance(module, Conv1D)
        self.spec, self.parameter = product_parameter(build, asked, parts, turned=turned, keep=keep)
        self.linear = build.ops.bind("linear", self.spec)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.reshape(-1, x.shape[-1]), self.parameter.packed)
        return result.view(*x.shape[:-1], self.n)


class TokenEmbedding:
    """[T] -> [T, n]."""

    def __init__(self, build: Build, names: CheckpointNames, module: nn.Embedding) -> None:
        spec = EmbeddingSpec(module.num_embeddings, module.embedding_dim, build.dtype)
        parts = {"weight": names.joins(module.weight)[0]}
        self.parameter = build.register_parameter(
            Parameter(parts, lambda raw, into: build.ops.prepare("embedding", spec, raw, into))
        )
        self.call = build.ops.bind("embedding", spec)

    def __call__(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.call(tokens, self.parameter.tensor)
        return result
