"""Puts this engine's parts into a transformers module: replaces linear layers, embedding, experts and head, and
registers every weight that its code still uses as a parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import grouped_mm_experts_forward
from transformers.pytorch_utils import Conv1D

from tessera.layers.build import Build
from tessera.layers.linear import Products, product_parameter
from tessera.layers.mlp import ROUTER
from tessera.layers.weights import Parameter
from tessera.models.through_transformers.attention import AttentionInTurn, Lookahead, Step, bind_attention
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.norms import bind_norms
from tessera.models.through_transformers.rehearsal import Rehearsed
from tessera.models.through_transformers.skeleton import Anatomy, sizes
from tessera.ops import EmbeddingSpec, ExpertsSpec, GateSpec, LinearSpec
from tessera.ops.mlp import gate
from tessera.ops.tensors import torch_dtype
from tessera.platform.model import Product as BuiltProduct
from tessera.platform.model import ProductLayer
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part


class BoundProduct(nn.Module):
    """[.., k] -> [.., n]: a bound linear op. weight: empty, for code that asks for its dtype or device. keep: the
    reason why it must not be quantized, if any. tied: the weight is the embedding's."""

    def __init__(
        self, build: Build, names: CheckpointNames, module: Any, *, keep: str = "", tied: bool = False
    ) -> None:
        super().__init__()
        self.n, k = sizes(module)
        self.in_features, self.out_features = k, self.n  # for code that asks for them
        self.weight = torch.empty(0, dtype=module.weight.dtype, device=build.device.target)
        parts = {"weight": names.joins(module.weight)[0]}
        if module.bias is not None:
            parts["bias"] = names.joins(module.bias)[0]
        asked = LinearSpec(self.n, k, build.dtype, bias=module.bias is not None)
        kind = "Embedding" if tied else "Conv1D" if isinstance(module, Conv1D) else "Linear"
        self.products = Products(build, asked, parts, module=kind, keep=keep)

    def forward(self, x: Tensor) -> Tensor:
        return self.products(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], self.n)


class BoundConvolution(nn.Module):
    """[B, k, length] -> [B, n, length after it]: a convolution over one axis as a bound linear op of what each place
    sees. Libraries' convolutions in 16 bits are slow where the processor does not multiply in them."""

    def __init__(self, build: Build, names: CheckpointNames, module: nn.Conv1d) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = module.kernel_size, module.stride, module.padding  # code asks too
        self.weight = torch.empty(0, dtype=module.weight.dtype, device=build.device.target)
        parts = {"weight": names.joins(module.weight)[0]}
        if module.bias is not None:
            parts["bias"] = names.joins(module.bias)[0]
        k = module.in_channels * module.kernel_size[0]
        asked = LinearSpec(module.out_channels, k, build.dtype, bias=module.bias is not None)
        self.products = Products(build, asked, parts, module="Convolution", keep="a convolution")

    @staticmethod
    def computes(module: nn.Module) -> bool:
        """Whether it can take a module's place."""
        if type(module) is not nn.Conv1d or module.padding_mode != "zeros" or isinstance(module.padding, str):
            return False
        return module.groups == 1 and module.dilation == (1,)

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (int(self.padding[0]),) * 2)
        seen = padded.unfold(-1, self.kernel_size[0], self.stride[0]).transpose(1, 2)  # [B, length after it, k, width]
        made = self.products(seen.flatten(2).flatten(0, 1))
        return made.view(len(x), seen.shape[1], -1).transpose(1, 2)


class BoundPatches(nn.Module):
    """[B, k, ...] -> [B, n, ...]: a convolution over two or three axes whose windows lie side by side, as that which
    makes patches of an image, as a bound linear op. Some towers call it with each patch as an image of its own, which
    libraries' convolutions are slow at."""

    def __init__(self, build: Build, names: CheckpointNames, module: Any) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = module.kernel_size, module.stride, module.padding  # code asks too
        self.in_channels, self.out_channels = module.in_channels, module.out_channels
        self.weight = torch.empty(0, dtype=module.weight.dtype, device=build.device.target)
        parts = {"weight": names.joins(module.weight)[0]}
        if module.bias is not None:
            parts["bias"] = names.joins(module.bias)[0]
        k = module.in_channels * prod(module.kernel_size)
        asked = LinearSpec(module.out_channels, k, build.dtype, bias=module.bias is not None)
        self.products = Products(build, asked, parts, module="Convolution", keep="a convolution")

    @staticmethod
    def computes(module: Any) -> bool:
        """Whether it can take a module's place."""
        if type(module) not in (nn.Conv2d, nn.Conv3d) or any(number != 1 for number in module.dilation):
            return False
        return module.groups == 1 and module.stride == module.kernel_size and not any(_numbers(module.padding))

    def forward(self, x: Tensor) -> Tensor:
        counts = [size // width for size, width in zip(x.shape[2:], self.kernel_size, strict=True)]
        for axis, (count, width) in enumerate(zip(counts, self.kernel_size, strict=True), start=2):
            x = x.narrow(axis, 0, count * width)
        sizes = [size for pair in zip(counts, self.kernel_size, strict=True) for size in pair]
        split = x.reshape(len(x), self.in_channels, *sizes)  # [B, k, windows, width, ...]
        axes = range(2, split.dim())
        windows = split.permute(0, *axes[::2], 1, *axes[1::2]).reshape(len(x) * prod(counts), -1)
        made = self.products(windows).view(len(x), *counts, self.out_channels)
        return made.movedim(-1, 1)


def _numbers(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    """Of a convolution; "valid" is none."""
    return (0,) if padding == "valid" else (1,) if isinstance(padding, str) else padding


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


ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def exchange_experts(build: Build, names: CheckpointNames, module: Any, top_k: int) -> None:
    activation = _activation(module)
    if activation is None:
        module.tessera_experts = grouped_mm_experts_forward if _aligned(module) else type(module).forward.__wrapped__
    else:
        module.tessera_experts = BoundExperts(build, names, module, top_k, activation)
        module._parameters.clear()


class BoundExperts:
    """hidden [T, k], ids and weights [T, top_k] -> [T, k]."""

    def __init__(self, build: Build, names: CheckpointNames, module: Any, top_k: int, activation: str) -> None:
        experts, wide, k = module.gate_up_proj.shape
        asked = LinearSpec(wide, k, build.dtype, experts=experts)
        gate_up, self.gate_up = _parameter(build, names, module.gate_up_proj, asked)
        asked = LinearSpec(k, wide // 2, build.dtype, experts=experts)
        down, self.down = _parameter(build, names, module.down_proj, asked)
        spec = ExpertsSpec(gate_up, GateSpec(wide // 2, build.dtype, activation), down, top_k)
        self.call = build.ops.bind("experts", spec)

    def __call__(self, module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        routed = weights.float(), ids.to(torch.int32)
        result: Tensor = self.call(hidden, *routed, self.gate_up.packed, self.down.packed)
        return result


def _parameter(build: Build, names: CheckpointNames, weight: Tensor, spec: LinearSpec) -> tuple[LinearSpec, Parameter]:
    joins = names.joins(weight)
    if len(joins) == 1 and len(joins[0]) == 1:
        joins = _one_by_one(build, joins[0][0]) or joins
    stacked = len(joins) > 1
    parts = {"weight": joins if stacked else joins[0]}
    return product_parameter(build, spec, parts, stacked=stacked)


def _one_by_one(build: Build, whole: Part) -> list[list[Part]]:
    """The experts of a weight that transformers' checkpoints have in one tensor, where the source has a matrix for
    each; none elsewhere."""
    experts, *shape = whole.whole
    stored = build.stored
    for name in (whole.name, *whole.also):
        before, found, kind = name.rpartition(".experts.")
        each = [f"{before}.experts.{expert}.{kind}.weight" for expert in range(experts)]
        if found and stored is not None and not stored.holds(name) and stored.holds(each[0]):
            return [[Part(own, tuple(shape))] for own in each]
    return []


def _aligned(module: Any) -> bool:
    """Whether torch's grouped products support the module's weights; if not, its own code runs, one expert at a
    time."""
    sizes = [size * weight.element_size() for weight in module.parameters() for size in weight.shape[-2:]]
    return all(size % 16 == 0 for size in sizes)


def _activation(module: Any) -> str | None:
    """The activation of gated experts that the op can compute; None for others. Found by comparing results, since the
    gate may also be clamped or scaled."""
    if not module.has_gate or module.has_bias or module.is_transposed or not module.is_concatenated:
        return None
    if getattr(module, "has_post_expert_norm", False):
        return None
    wide = torch.linspace(-30.0, 30.0, 64).view(4, 16)
    try:
        theirs = module._apply_gate(wide)
    except (NotImplementedError, RuntimeError):  # the gate has its own weights
        return None
    ours = {name: gate(GateSpec(8, "float32", name), wide) for name in ACTIVATIONS}
    return next((name for name, value in ours.items() if torch.allclose(theirs, torch.as_tensor(value))), None)


ROUTERS = ("gate", "router")
"""Names of the linear layers beside experts that choose among them."""


def exchange(
    build: Build,
    anatomy: Anatomy,
    names: CheckpointNames,
    rehearsed: Rehearsed,
    step: Step,
    lookahead: Lookahead = "none",
) -> tuple[BoundProduct | None, Any]:
    """Returns the head over the vocabulary, if the model has one, and a callable from token ids [T] to [T, hidden], or
    to themselves if the model's code takes them. Afterwards the model is ready to be served by its own code."""
    named = {module: name for name, module in anatomy.model.named_modules()}
    layers: dict[Any, list[Any]] = defaultdict(list)
    for module, call in rehearsed.attention:
        layers[module].append(bind_attention(build, named[module], call, step, lookahead))
    for module, bound in layers.items():
        module.tessera_attention = bound[0] if len(bound) == 1 else AttentionInTurn(bound, step)
    for module, top_k in rehearsed.experts.items():
        exchange_experts(build, names, module, top_k)
    for name, module in anatomy.linears.items():
        if module.weight.dtype == torch_dtype(build.dtype) and not names.keeps_float32(name):
            owner, _, key = name.rpartition(".")
            parent = anatomy.model.get_submodule(owner)
            routes = any(child in rehearsed.experts for child in parent.children()) and key in ROUTERS
            product = BoundProduct(build, names, module, keep=ROUTER if routes else "")
            build.products += _built(name, product.products)
            setattr(parent, key, product)
    embed: Any = anatomy.embedding
    head, exchanged = None, set[nn.Module]()
    if anatomy.head is not None:
        head = BoundProduct(build, names, anatomy.head, tied=anatomy.tied)
        owner, _, key = named[anatomy.head].rpartition(".")
        setattr(anatomy.model.get_submodule(owner), key, nn.Identity())
    if rehearsed.by_tokens:
        embed = nn.Identity()
    elif type(embed) is nn.Embedding:
        exchanged.add(embed)
        embed = TokenEmbedding(build, names, embed)
    bind_norms(build, names, anatomy.model)
    for name, module in anatomy.model.named_modules():
        if module not in exchanged:
            keep_weights(build, names, name, module)
    return head, embed


def _built(name: str, products: Products) -> Iterator[BuiltProduct]:
    """The products of one layer."""
    first, whole = 0, products.spec
    for spec, parameter in zip(products.specs, products.parameters, strict=True):
        outputs = range(first, first + spec.n)
        yield BuiltProduct(spec, (ProductLayer(name, whole.k, whole.n, outputs, (0, whole.k)),), parameter.attach)
        first += spec.n


def keep_weights(build: Build, names: CheckpointNames, name: str, module: nn.Module) -> None:
    """Registers parameters for a module's own weights, and moves the tables it computed to the device."""
    saved: list[tuple[str, Tensor]] = []
    for key, buffer in list(module.named_buffers(recurse=False)):
        if key in module._non_persistent_buffers_set:
            setattr(module, key, buffer.to(build.device.target))
        elif buffer.is_meta:
            saved.append((key, buffer))
    for key, weight in [*module.named_parameters(recurse=False), *saved]:
        dtype = "float32" if names.keeps_float32(f"{name}.{key}") else str(weight.dtype).removeprefix("torch.")
        joins = names.joins(weight, None if dtype == build.dtype else dtype)
        joins = [[build.weights.decoded(part, dtype) for part in join] for join in joins]
        stacked = len(joins) > 1
        parts = {"weight": joins if stacked else joins[0]}
        build.register_parameter(Parameter(parts, _WeightPlace(module, key, tuple(weight.shape)), stacked=stacked))


class _WeightPlace:
    """Puts a loaded weight into a module; a second load overwrites it in place."""

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
