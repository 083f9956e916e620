"""Copies of the strict platform with something else in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tessera.platform import AttentionLayer, BoundOps, Caches, Device, LayerSpec, OpSet, replace
from tessera.reference.attention import PagedPlan
from tessera.testing import StrictPlatform
from tessera.testing.strict.attention import PoisonedNull, StrictAttention

Faulty = type[StrictPlatform]


def with_ops(**kernels: Any) -> Faulty:
    class Platform(StrictPlatform):
        def ops(self, reference: OpSet) -> OpSet:
            return replace(super().ops(reference), **kernels)

    return Platform


def with_layer(make: type[PoisonedNull]) -> Faulty:
    class Attention(StrictAttention):
        def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> AttentionLayer:
            return make(spec, weights, ops)

    class Platform(StrictPlatform):
        def attention_backends(self) -> list[StrictAttention]:
            return [Attention(self.current)]

    return Platform


def with_spec(change: Callable[[LayerSpec], Mapping[str, Any]]) -> Faulty:
    """A layer that reads its spec wrongly."""

    class Layer(PoisonedNull):
        def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
            super().__init__(dataclasses.replace(spec, **change(spec)), weights, ops)

    return with_layer(Layer)


def with_plan(change: Callable[[PagedPlan, Caches], Mapping[str, Any]]) -> Faulty:
    """A layer whose attend works from another plan."""

    class Layer(PoisonedNull):
        def attend(
            self, q: Tensor, caches: Caches, plan: PagedPlan, out: Tensor | None = None, lse: bool = False
        ) -> Any:
            return super().attend(q, caches, dataclasses.replace(plan, **change(plan, caches)), out, lse)

    return with_layer(Layer)
