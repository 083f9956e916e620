"""The op table: core's definitions, which XLA compiles and fuses as part of a step, and products of int8."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.platform import (
    ActSpec,
    BoundOps,
    Device,
    Kernel,
    LinearSpec,
    LoraSpec,
    OpSet,
    Packed,
    QuantSpec,
    Reason,
    Scheme,
    Tensor,
    replace,
)
from tessera_tpu.arrays import as_jax, as_torch
from tessera_tpu.paged import rounded

_WEIGHT, _ACTIVATION = QuantSpec("int8", "channel"), ActSpec("int8", granularity="token")


def multiplied(scheme: Scheme) -> Scheme | Reason:
    """The scheme, if a product of int8 computes it."""
    if scheme.weight == _WEIGHT and scheme.activation == _ACTIVATION:
        return scheme
    return "it multiplies int8 weights that have a scale for each row, with activations rounded for each token"


class Compiled(Kernel[Any]):
    """The definition of a plain op, as a part of a program that XLA compiles. It is the platform's implementation, and
    no stand-in for one: XLA fuses what the definition spells out."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def supports(self, spec: Any) -> Reason | None:
        return None

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> Any:
        return partial(self.reference, spec)


class Linear(Compiled):
    """Weights in int8 are multiplied as such, into sums of 32 bits."""

    def bind(self, spec: LinearSpec, ops: BoundOps, device: Device) -> Any:
        if spec.scheme is None:
            return super().bind(spec, ops, device)

        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            """x [T, k]; weight "weight" [n, k] int8, "scale" [n] float32, and "bias" [n] if the spec has one."""
            bias = as_jax(weight["bias"]) if spec.bias else None
            y = as_torch(product(as_jax(x), as_jax(weight["weight"]), as_jax(weight["scale"]), bias))
            return y if out is None else out.copy_(y)

        return linear

    def supports(self, spec: LinearSpec) -> Reason | None:
        said = None if spec.scheme is None else multiplied(spec.scheme)
        return said if isinstance(said, str) else None


class Lora(Compiled):
    """The definition computes each slot for all tokens; here, all slots are one product."""

    def bind(self, spec: LoraSpec, ops: BoundOps, device: Device) -> Any:
        def lora(y: Tensor, *operands: Tensor) -> None:
            y.copy_(as_torch(adapted(spec, as_jax(y), *map(as_jax, operands))))

        return lora


def adapted(spec: LoraSpec, y: Any, x: Any, a: Any, b: Any, scales: Any, slots: Any) -> Any:
    """As the op lora, with its result returned. What lies between the two products is rounded to the dtype, as matrix
    units take it."""
    tokens, joined = len(x), len(spec.layers)
    exact = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    narrow = jnp.einsum("tk,srk->tsr", x, a, precision=exact, preferred_element_type=jnp.float32)
    own = (slots[:, None] == jnp.arange(spec.slots))[..., None]
    narrow = jnp.where(own, narrow * scales[:, None], 0).astype(x.dtype).reshape(tokens, spec.slots, joined, spec.rank)
    ends = np.cumsum(spec.layers)[:-1]
    parts = [
        jnp.einsum("tsr,srn->tn", narrow[:, :, layer], part, precision=exact, preferred_element_type=jnp.float32)
        for layer, part in enumerate(jnp.split(b, ends, axis=-1))
    ]
    return (y.astype(jnp.float32) + jnp.concatenate(parts, axis=-1)).astype(y.dtype)


def product(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    """x [T, k], rounded to int8 with a scale for each token; weight [n, k] int8 -> [T, n] of the dtype of x."""
    data, own = rounded(x)
    sums = jax.lax.dot_general(data, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    result = sums.astype(jnp.float32) * own[:, None] * scale
    return (result if bias is None else result + bias.astype(jnp.float32)).astype(x.dtype)


def compiled(reference: OpSet) -> OpSet:
    """core's table, with every plain op compiled."""
    plain = {name: op.reference for name in reference.names() if (op := reference[name]).reference is not None}
    kernels: dict[str, Any] = {name: Compiled(call) for name, call in plain.items()}
    return replace(reference, **{**kernels, "linear": Linear(plain["linear"]), "lora": Lora(plain["lora"])})
