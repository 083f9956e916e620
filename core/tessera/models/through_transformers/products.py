"""Products and the embedding of token ids, in the places of transformers' modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from tessera.layers.build import Build
from tessera.layers.weights import Slot
from tessera.models.through_transformers.anatomy import sizes
from tessera.models.through_transformers.names import CheckpointNames
from tessera.platform.ops import EmbeddingSpec, LinearSpec, Packed


class Product(nn.Module):
    """[.., k] -> [.., n]: a bound linear op. weight: empty, for code that asks for its dtype or device."""

    def __init__(self, build: Build, names: CheckpointNames, module: Any) -> None:
        super().__init__()
        self.n, k = sizes(module)
        self.weight = torch.empty(0, dtype=module.weight.dtype, device=build.device.target)
        self.spec = LinearSpec(self.n, k, build.dtype, bias=module.bias is not None)
        parts = {"weight": names.joins(module.weight)[0]}
        if module.bias is not None:
            parts["bias"] = names.joins(module.bias)[0]
        transposed = isinstance(module, Conv1D)

        def prepare(raw: Packed, into: Packed | None) -> Packed:
            if transposed:
                raw = {**raw, "weight": raw["weight"].T.contiguous()}
            return build.ops.prepare("linear", self.spec, raw, into)

        self.slot = build.slot(Slot(parts, prepare))
        self.linear = build.ops.bind("linear", self.spec)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.reshape(-1, x.shape[-1]), self.slot.packed)
        return result.view(*x.shape[:-1], self.n)


class TokenEmbedding:
    """[T] -> [T, n]."""

    def __init__(self, build: Build, names: CheckpointNames, module: nn.Embedding) -> None:
        spec = EmbeddingSpec(module.num_embeddings, module.embedding_dim, build.dtype)
        parts = {"weight": names.joins(module.weight)[0]}
        self.slot = build.slot(Slot(parts, lambda raw, into: build.ops.prepare("embedding", spec, raw, into)))
        self.call = build.ops.bind("embedding", spec)

    def __call__(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.call(tokens, self.slot.tensor)
        return result
