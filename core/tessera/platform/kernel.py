"""What a vendor supplies for an op."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tessera.platform.device import Device, Reason, Tensor
from tessera.platform.quantization import ActSpec, Scheme

if TYPE_CHECKING:
    from tessera.platform.ops import BoundOps

S = TypeVar("S")
HotCall = Callable[..., Any]
"""What a step calls: (*tensors, out=None), in the order that docs/decisions/ops.md lists them."""
Packed = Mapping[str, Tensor]
"""A weight as its kernel keeps it: prepare() makes it, the hot call takes it."""


class Kernel(ABC, Generic[S]):
    """What a vendor supplies for an op; a bare function f(spec, *tensors, out=None) is a Kernel with these defaults."""

    def supports(self, spec: S) -> Reason | None:
        """Sees constants only; asked once a place. Default: yes, unless a weight is quantized, which only a kernel that
        knows of it can take."""
        return "no quantized weights" if _quantized(spec) else None

    @abstractmethod
    def bind(self, spec: S, ops: BoundOps, device: Device) -> HotCall:
        """The hot call. `ops.reference(name, spec)` is the reference, counted each time it runs; --no-fallback forbids
        it."""

    def prepare(self, spec: S, raw: Packed, into: Packed | None = None) -> Packed:
        """Repack or quantise; pure and repeatable. `into`: write into what stands, so addresses stay. Default: as it
        is."""
        if into is None:
            return raw
        for name, tensor in raw.items():
            into[name].copy_(tensor)
        return into

    def wants(self, spec: S) -> ActSpec | None:
        """Its input quantised so; the producer (norm, activation) is asked to emit it. Default: no."""
        return None

    def packed_bytes(self, spec: S) -> int | None:
        """Bytes of the prepared weight, without weights, for planning. None: as the raw one."""
        return None


class FunctionKernel(Kernel[Any]):
    """A bare function as a Kernel."""

    def __init__(self, function: HotCall) -> None:
        self.function = function

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        return partial(self.function, spec)


def _quantized(spec: Any) -> bool:
    """Whether a spec, or one within it, has a scheme."""
    if isinstance(spec, Scheme):
        return True
    if not dataclasses.is_dataclass(spec):
        return False
    return any(_quantized(getattr(spec, field.name)) for field in dataclasses.fields(spec))


def kernel_name(kernel: Kernel[Any]) -> str:
    """For people: its class, or the function that it is."""
    if isinstance(kernel, FunctionKernel):
        return getattr(kernel.function, "__name__", type(kernel.function).__name__)
    return type(kernel).__name__
