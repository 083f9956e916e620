"""Random arguments for an op at a place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.ops import REFERENCE, LinearSpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.ops import BoundOps, Op, Packed
from tessera.testing.random_parts import random_parts


class OpInputs:
    """`OpInputs(tokens, seed).arguments("linear", spec)`: random positional arguments of the op's hot call, on the
    host. The same seed gives the same arguments."""

    def __init__(
        self,
        tokens: int,
        seed: int = 0,
        # Its kernels prepare the weights of matrix products, on its device; None: weights stay raw.
        ops: BoundOps | None = None,
        dtype: str = "float32",  # of activations if the spec does not say (Op.any_dtype)
        into: Sequence[Packed] = (),  # prepared weights to overwrite, in order
    ) -> None:
        self.tokens, self.ops, self.dtype = tokens, ops, dtype
        self.random = torch.Generator().manual_seed(seed)  # the generator they draw from
        # The weights, in order. Op.inputs uses the methods below.
        self.prepared: list[Packed] = []
        self._into = iter(into)

    def arguments(self, op: str | Op[Any], spec: Any) -> tuple[Any, ...]:
        """The arguments of an op at a spec. op: the name of one of core's, or any op that has inputs."""
        found = REFERENCE[op] if isinstance(op, str) else op
        assert found.inputs is not None, found.name
        return found.inputs(spec, self)

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> Tensor:
        """Normally distributed numbers, with standard deviation `scale`."""
        return (torch.randn(*shape, generator=self.random) * scale).to(torch_dtype(dtype))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int32, from low to below high."""
        if 0 in shape:  # for which low may be high
            return torch.empty(shape, dtype=torch.int32)
        return torch.randint(low, high, shape, generator=self.random, dtype=torch.int32)

    def uniform(self, low: float, high: float) -> Tensor:
        """[tokens] float32."""
        return low + (high - low) * torch.rand(self.tokens, generator=self.random)

    def weight(self, spec: LinearSpec) -> Packed:
        """The weight of a matrix product, [n, k] or [experts, n, k], in the parts of its scheme."""
        shape = (spec.experts, spec.n, spec.k) if spec.experts else (spec.n, spec.k)
        packed = {"weight": self.normal(*shape, dtype=spec.dtype, scale=1 / math.sqrt(spec.k))}
        if spec.bias:
            packed["bias"] = self.normal(*shape[:-1], dtype=spec.dtype)
        if spec.scheme is not None:
            packed.update(random_parts(packed.pop("weight"), spec.scheme, self.random))
        if self.ops is None:
            return packed
        target = self.ops.device.target
        raw = {name: tensor.to(target) for name, tensor in packed.items()}
        self.prepared.append(self.ops.prepare("linear", spec, raw, next(self._into, None)))
        return self.prepared[-1]
