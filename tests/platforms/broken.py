"""Strict platforms that each break one rule, to show that the rule bites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tessera.ops.mlp import gate
from tessera.ops.quantize import Activation
from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Caches,
    Capabilities,
    Device,
    GatedMLPSpec,
    Kernel,
    Launch,
    LayerSpec,
    OpSet,
    Plan,
    Reason,
    replace,
)
from tessera.platform.ops import HotCall
from tessera.reference.attention import PagedPlan, ReferenceAttentionLayer
from tessera.testing import StrictPlatform
from tessera.testing.strict import StrictAttention

WIDE_INDICES = Capabilities(("float32",), index_dtype="int64", static_shapes=True)


class ReadingPlatform(StrictPlatform):
    """An op asks the device how large its input is."""

    def ops(self, reference: OpSet) -> OpSet:
        return replace(super().ops(reference), gate=self._gate, gated_mlp=_ByParts())

    @staticmethod
    def _gate(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Activation:
        assert x.nan_to_num().abs().max().item() < 1e9
        return gate(spec, x, out=out)


class MovingPlatform(StrictPlatform):
    """A plan is made of new tensors for each launch."""

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (_MovingAttention(self.current),)


class CuriousPlatform(StrictPlatform):
    """Attention gives what is no key a weight of zero, and multiplies it with whatever lies in memory."""

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (_CuriousAttention(self.current),)


class MixingPlatform(StrictPlatform):
    """A norm looks at all rows, padding too."""

    def ops(self, reference: OpSet) -> OpSet:
        return replace(super().ops(reference), gate=self._gate, gated_mlp=_ByParts())

    @staticmethod
    def _gate(spec: Any, x: Tensor, *, out: Tensor | None = None) -> Activation:
        return gate(spec, x + 0.0 * x.sum(0, keepdim=True), out=out)


class WideIndexPlatform(StrictPlatform):
    """Its indices have 64 bits."""

    capabilities = WIDE_INDICES


class LosingPlatform(StrictPlatform):
    """What its second device computes never arrives."""

    def open(self, index: int) -> Device:
        device = super().open(index)
        if index == 1:
            device.to_host = lambda _: _Lost()
        return device


class _Lost:
    def done(self) -> bool:
        return False

    def result(self) -> Any:
        raise RuntimeError("the device is lost")


class _ByParts(Kernel[GatedMLPSpec]):
    """Refuses every place, so that the composite is bound as its parts."""

    def supports(self, spec: GatedMLPSpec) -> Reason:
        return "its parts are what is tried"

    def bind(self, spec: GatedMLPSpec, ops: BoundOps, device: Device) -> HotCall:
        raise AssertionError(spec)


class _MovingAttention(StrictAttention):
    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> PagedPlan:
        return super().plan(launch, group, None)


class _CuriousAttention(StrictAttention):
    def bind(self, spec: LayerSpec, weights: Any, ops: BoundOps, device: Any) -> ReferenceAttentionLayer:
        return _CuriousLayer(spec, weights, ops)


class _CuriousLayer(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Plan, out: Tensor | None = None, lse: bool = False) -> Any:
        honest = super().attend(q, caches, plan, out, lse)
        values = caches[self.spec.layer][1][plan.tables].flatten(1, 2)
        rest = torch.where(plan.filled[:, 0, :, None, None], 0.0, values).sum(1).sum(1).sum(1)  # [R]
        return honest + 0.0 * rest[plan.grid.row][:, None, None]
