"""What the native mixers that keep a state share: where the state is, and what a launch computes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    Buffers,
    CacheConstraints,
    CacheSpec,
    KVLayout,
    Launch,
    LayerSpec,
    Mixer,
    Plane,
    StateSpec,
)
from tessera_cpu import native


@dataclass(frozen=True)
class StatePlan:
    """launch: in the kernels' form, whose tables have the rows' slots; tensors: those it points into. padded: whether
    there are tokens between or after the rows."""

    launch: native.Launch
    tensors: tuple[Tensor, ...]
    padded: bool


class NativeState(AttentionBackend):
    """A mixer of one kind over a StateSpec, whose planes are the state's tensors."""

    # LayerSpec.kind
    kind: str

    def __init__(self, library: Any) -> None:
        self.library = library

    def supports(self, spec: LayerSpec) -> str | None:
        if spec.kind != self.kind or not isinstance(spec.cache, StateSpec):
            return f"no {self.kind.replace('_', ' ')} over {spec.kind}"
        if spec.dtype not in native.ENTRIES or spec.cache.dtype != "float32":
            return f"no kernel for {spec.dtype} with a state in {spec.cache.dtype}"
        kernel = int(dict(spec.options)["kernel"])
        return f"a convolution over {kernel} tokens, more than {native.TAPS}" if kernel > native.TAPS else None

    def batch_invariant(self, spec: LayerSpec) -> None:
        return None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(1,), align_bytes=4)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, StateSpec)
        return KVLayout(
            tuple(
                Plane(name, spec.dtype, tuple((f"{name}{i}", n) for i, n in enumerate(shape)))
                for name, shape in spec.shapes
            )
        )

    def copy_states(self, planes: Sequence[Tensor], before: Tensor, after: Tensor) -> None:
        """Without torch's threads, which would wait for those of the kernels."""
        for plane in planes:
            address, step = plane.data_ptr(), plane.stride(0) * plane.element_size()
            for source, target in zip(before.tolist(), after.tolist(), strict=True):
                ctypes.memmove(address + target * step, address + source * step, plane[0].nbytes)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> StatePlan:
        tensors = launch.block_tables[group.number], launch.query_start_loc, launch.query_lens, launch.seq_lens
        tensors = tuple(tensor.to(torch.int32) for tensor in tensors)
        described = native.Launch(
            *(tensor.data_ptr() for tensor in tensors),
            table_stride=tensors[0].stride(0),
            rows=launch.num_rows,
            tokens=launch.key.tokens,
        )
        return StatePlan(described, tensors, launch.key.tokens != launch.num_tokens)


class NativeMixer(Mixer):
    """weights: as the kind's reference has them, in float32."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        self.spec, self.weights, self.library = spec, weights, library
        self.options, self.number = dict(spec.options), native.ENTRIES[spec.dtype]

    def _address(self, name: str, start: int = 0) -> int:
        """Of a weight, from element `start` on. Weights may be filled, and so moved, until the model is loaded."""
        weight = self.weights[name]
        return weight.data_ptr() + start * weight.element_size()

    def _convolved(self, task: native.Convolution, x: Tensor, conv: Tensor, plan: StatePlan, out: Tensor) -> None:
        """x, out: their first channel. conv: the plane with the last inputs."""
        task.launch, task.weight = ctypes.addressof(plan.launch), self._address("conv")
        task.x, task.x_stride = x.data_ptr(), x.stride(0)
        task.state, task.slot_stride = conv.data_ptr(), conv.stride(0)
        task.out = out.data_ptr()
        self.library.tessera_cpu_convolution(task)
