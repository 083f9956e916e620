"""A module of transformers with this engine's parts in it: products, the embedding and experts exchanged, and a
parameter for every weight that its own code goes on using."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tessera.layers.build import Build
from tessera.layers.mlp import ROUTER
from tessera.layers.weights import Parameter
from tessera.models.through_transformers.anatomy import Anatomy
from tessera.models.through_transformers.attention import AttentionCall, BoundAttention, Step
from tessera.models.through_transformers.experts import exchange_experts
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.products import Product, TokenEmbedding
from tessera.models.through_transformers.rehearsal import Rehearsed
from tessera.ops.tensors import torch_dtype
from tessera.platform.kernel import Packed

ROUTERS = ("gate", "router")
"""Names that linear layers beside experts have which choose among them."""


def exchange(build: Build, anatomy: Anatomy, found: Rehearsed, step: Step) -> tuple[Product, Any]:
    """The head, and what maps token ids [T] to [T, hidden]. The model is served by its own code from here on."""
    names = CheckpointNames(anatomy.model, build.dtype)
    attention: Mapping[Any, AttentionCall] = found.attention
    for module, call in attention.items():
        module.tessera_attention = BoundAttention(build, call, step)
    for module, top_k in found.experts.items():
        exchange_experts(build, names, module, top_k)
    for name, module in anatomy.linears.items():
        if module.weight.dtype == torch_dtype(build.dtype) and not names.keeps_float32(name):
            owner, _, key = name.rpartition(".")
            parent = anatomy.model.get_submodule(owner)
            routes = any(child in found.experts for child in parent.children()) and key in ROUTERS
            setattr(parent, key, Product(build, names, module, keep=ROUTER if routes else ""))
    head = Product(build, names, anatomy.head)
    exchanged: set[nn.Module] = {anatomy.head}
    embed: Any = anatomy.embedding
    if type(embed) is nn.Embedding:
        exchanged.add(embed)
        embed = TokenEmbedding(build, names, embed)
    for name, module in anatomy.model.named_modules():
        if module not in exchanged:
            _keep(build, names, name, module)
    return head, embed


def _keep(build: Build, names: CheckpointNames, name: str, module: nn.Module) -> None:
    """Parameters for a module's own weights; tables that it computed go to the device."""
    for key, buffer in module.named_buffers(recurse=False):
        if key in module._non_persistent_buffers_set:
            setattr(module, key, buffer.to(build.device.target))
    saved = [(key, value) for key, value in module.named_buffers(recurse=False) if value.is_meta]
    for key, weight in [*module.named_parameters(recurse=False), *saved]:
        dtype = "float32" if names.keeps_float32(f"{name}.{key}") else str(weight.dtype).removeprefix("torch.")
        joins = names.joins(weight, None if dtype == build.dtype else dtype)
        stacked = len(joins) > 1
        parts = {"weight": joins if stacked else joins[0]}
        build.register_parameter(Parameter(parts, _Place(module, key, tuple(weight.shape)), stacked=stacked))


class _Place:
    """Puts a loaded weight into a module; a second load writes into what stands."""

    def __init__(self, module: nn.Module, key: str, shape: tuple[int, ...]) -> None:
        self.module, self.key, self.shape = module, key, shape

    def __call__(self, raw: Packed, into: Packed | None) -> Packed:
        if into is not None:
            into["weight"].copy_(raw["weight"].view(self.shape))
            return into
        weight: Tensor = raw["weight"].view(self.shape)
        if self.key in self.module._parameters:
            weight = nn.Parameter(weight, requires_grad=False)
        setattr(self.module, self.key, weight)
        return {"weight": weight}
