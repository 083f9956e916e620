"""The gated short convolution with the native kernel, for rows of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tessera.platform import BoundOps, Caches, Device, LayerSpec, Mixer
from tessera_cpu import native
from tessera_cpu.products import rows_apart
from tessera_cpu.state import NativeMixer, NativeState, StatePlan


class ShortConvolution(NativeState):
    name, kind = "native-short-convolution", "short_convolution"

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return ShortConvolutionMixer(spec, weights, self.library)


class ShortConvolutionMixer(NativeMixer):
    """x [T, 3 channels]: b, c and x."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], library: Any) -> None:
        super().__init__(spec, weights, library)
        self.task = native.Convolution(channels=spec.head_dim, kernel=int(self.options["kernel"]), number=self.number)

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: StatePlan) -> Tensor:
        x, (conv,), channels, task = rows_apart(x), caches[self.spec.layer], self.spec.head_dim, self.task
        out = (x.new_zeros if plan.padded else x.new_empty)(len(x), channels)
        task.before = x.data_ptr()
        task.after = task.before + channels * x.element_size()
        task.bias = self._address("bias") if self.options["bias"] else None
        self._convolved(task, x[:, 2 * channels :], conv, plan, out)
        return out
