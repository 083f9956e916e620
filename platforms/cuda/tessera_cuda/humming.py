"""Products by the package humming (humming-kernels), where it is installed: activations as they are, with weights in
int4 or int8. It compiles its kernels for the card, and one of them arranges the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, Reason
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.lookup import PackedEmbedding
from tessera_triton.products import Linear
from tessera_triton.providers import Provider

_OF_LAYER = ("shape_n", "shape_k", "weight_schema", "has_bias", "torch_dtype", "device")
TRANSFORM = {
    "HummingWeightSchema": ("b_dtype", "weight_scale_group_size"),
    "prepare_layer_config": _OF_LAYER,
    "prepare_and_transform_humming_tensors": ("tensors", *_OF_LAYER),
}
FORWARD = {
    "humming_forward": ("config", "inputs", "weight", "weight_scale", "bias", "weight_scale_2", "locks"),
}
"""By function, the arguments that calls here name."""

_BITS = {"int4": 4, "int8": 8}
_GROUPS = (32, 64, 128)  # inputs that share a scale
_MULTIPLE = 128  # of inputs and of outputs, for which all of its tiles fit
_LOCKS = 2048  # with which the programs of a product that share a tile wait for each other


@dataclass(frozen=True)
class Humming:
    """The package: transform is its module that arranges weights, forward the one that multiplies."""

    transform: Provider
    forward: Provider

    @property
    def usable(self) -> bool:
        parts = self.transform, self.forward
        return all(part.absent is None for part in parts) and all(part.broken is None for part in parts)


def package() -> Humming:
    return Humming(Provider("humming", "humming.transform", TRANSFORM), Provider("humming", "humming.forward", FORWARD))


def kernels(facts: DeviceFacts, launch: Launcher, humming: Humming) -> dict[str, Kernel[Any]]:
    """The kernels in which the package takes part, by op; none if it is not there or cannot be used."""
    if not humming.usable:
        return {}
    linear = HummingOrTritonLinear(facts, launch, humming)
    lookup = PackedEmbedding(facts, launch, linear, packed_elsewhere=lambda spec: why_triton(spec) is None)
    return {"linear": linear, "packed_embedding": lookup}


def why_triton(spec: LinearSpec) -> Reason | None:
    """Why the package does not compute a product."""
    scheme = spec.scheme
    if scheme is None or scheme.weight.dtype not in _BITS or not scheme.weight.symmetric:
        return "no weights in int4 or int8 without zero points"
    if scheme.activation is not None:
        return "activations are quantized"
    if spec.dtype not in ("bfloat16", "float16") or scheme.parts["scale"].dtype != spec.dtype:
        return f"activations in {spec.dtype} and scales in {scheme.parts['scale'].dtype}"
    if scheme.weight.granularity != "channel" and scheme.weight.group not in _GROUPS:
        return f"scales of neither outputs nor groups of {', '.join(map(str, _GROUPS))}"
    if spec.experts or spec.n % _MULTIPLE or spec.k % _MULTIPLE:
        return f"outputs or inputs are no multiple of {_MULTIPLE}"
    return None


@dataclass(frozen=True)
class HummingOrTritonLinear(Linear):
    """Products with weights in int4 or int8 without zero points, of activations as they are, by the package; all others
    by Triton or torch. What the package makes of a weight depends on the card and is only read by it."""

    package: Humming

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        """Passes on words of the numbers, the first in the lowest bits, each with 8 or 128 added [n, words] int32, and
        scales [n, k / group]."""
        if why_triton(spec) is not None:
            return super().prepare(spec, raw, into)
        stored = raw["weight"].contiguous().view(torch.uint8)
        given = {
            "weight": (stored if raw["weight"].dtype is torch.uint8 else stored ^ 128).view(torch.int32),
            "weight_scale": raw["scale"].reshape(spec.n, -1).contiguous(),
        }
        if spec.bias:
            given["bias"] = raw["bias"]
        transform = self.package.transform.function("prepare_and_transform_humming_tensors")
        _, packed = transform(tensors=given, **self._layer(spec, stored.device))
        return Kernel.prepare(self, spec, packed, into)

    def packed_bytes(self, spec: LinearSpec) -> int | None:
        return super().packed_bytes(spec) if why_triton(spec) is not None else None

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        if why_triton(spec) is not None:
            return super().bind(spec, ops, device)
        config = self.package.transform.function("prepare_layer_config")(**self._layer(spec, device.target))
        multiply = self.package.forward.function("humming_forward")
        locks = torch.zeros(_LOCKS, dtype=torch.int32, device=device.target)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            if not len(x):
                return x.new_empty(0, spec.n) if out is None else out
            made: Tensor = multiply(
                config=config, inputs=x.contiguous(), weight=weight["weight"], weight_scale=weight["weight_scale"],
                bias=weight.get("bias"), weight_scale_2=weight.get("weight_scale_2"), locks=locks,
            )  # fmt: skip
            return made if out is None else out.copy_(made)

        return linear

    def _layer(self, spec: LinearSpec, device: Any) -> dict[str, Any]:
        """What the package is told of a product."""
        assert spec.scheme is not None, "declined otherwise"
        weight = spec.scheme.weight
        schema = self.package.transform.function("HummingWeightSchema")(
            b_dtype=f"uint{_BITS[weight.dtype]}", weight_scale_group_size=weight.group
        )
        return {
            "shape_n": spec.n, "shape_k": spec.k, "weight_schema": schema, "has_bias": spec.bias,
            "torch_dtype": getattr(torch, spec.dtype), "device": device,
        }  # fmt: skip
