"""Plants a mistake in one place of a platform, whichever it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    BoundOps,
    Caches,
    Communicator,
    Device,
    GraphRunner,
    HeadsLayer,
    LayerSpec,
    Mixer,
    ModelFacts,
    OpSet,
    Platform,
    WorkerSpec,
    replace,
)
from tessera.runner import collectives

if TYPE_CHECKING:
    from tessera.config import EngineConfig

Base = type[Platform]
Plant = Callable[[Base], Base]
"""From a platform to its copy with the mistake."""


def with_ops(**kernels: Any) -> Plant:
    def plant(base: Base) -> Base:
        class Faulty(base):
            def ops(self, reference: OpSet) -> OpSet:
                return replace(super().ops(reference), **kernels)

        return Faulty

    return plant


def with_float16(mistake: Plant) -> Plant:
    """For a mistake in a dtype that not every platform claims."""

    def plant(base: Base) -> Base:
        class Wider(base):
            capabilities = dataclasses.replace(
                base.capabilities, dtypes=tuple(dict.fromkeys((*base.capabilities.dtypes, "float16")))
            )

        return mistake(Wider)

    return plant


def with_exact_shapes(mistake: Plant) -> Plant:
    """For a mistake in launches that are larger than the platform's own."""

    def plant(base: Base) -> Base:
        class Exact(base):
            capabilities = dataclasses.replace(base.capabilities, static_shapes=False)

            def shapes(self, model: ModelFacts, config: EngineConfig) -> None:
                return None

        return mistake(Exact)

    return plant


def with_device(change: Callable[[Device, Callable[[int], Device]], Device]) -> Plant:
    """change: from a device, and what opens others, to the same device with a mistake."""

    def plant(base: Base) -> Base:
        class Faulty(base):
            def open(self, index: int) -> Device:
                return change(super().open(index), super().open)

        return Faulty

    return plant


Bind = Callable[[LayerSpec, Mapping[str, Tensor], BoundOps, Device], Mixer]


def with_bind(change: Callable[[Bind, LayerSpec], Bind]) -> Plant:
    """change: from a backend's bind and the spec of a layer to another."""

    class Attention(AttentionBackend):
        def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
            return change(super().bind, spec)(spec, weights, ops, device)

    return with_backend(Attention)


def with_backend(mistake: type[AttentionBackend]) -> Plant:
    """mistake: stands before the backend's own class."""

    def faulty(backend: AttentionBackend) -> AttentionBackend:
        class Attention(mistake, type(backend)):
            def __init__(self) -> None:
                vars(self).update(vars(backend))

        return Attention()

    def plant(base: Base) -> Base:
        class Faulty(base):
            def attention_backends(self) -> list[Any]:
                every = super().attention_backends()
                return [faulty(one) if isinstance(one, AttentionBackend) else one for one in every]

        return Faulty

    return plant


def with_spec(change: Callable[[LayerSpec], Mapping[str, Any]]) -> Plant:
    """A layer that reads its spec wrongly."""

    def bind(right: Bind, _: LayerSpec) -> Bind:
        return lambda spec, *others: right(dataclasses.replace(spec, **change(spec)), *others)

    return with_bind(bind)


def with_layer(mistake: type[HeadsLayer]) -> Plant:
    """mistake: stands before the layer's own class."""

    def bind(right: Bind, _: LayerSpec) -> Bind:
        def faulty(spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
            own = type(right(spec, weights, ops, device))
            return type(mistake.__name__, (mistake, own), {})(spec, weights, ops)

        return faulty

    return with_bind(bind)


def with_plan(change: Callable[[Any], Mapping[str, Any]]) -> Plant:
    """A layer whose attend works from another plan."""

    class Layer(HeadsLayer):
        def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
            return super().attend(q, caches, dataclasses.replace(plan, **change(plan)), out, lse)

    return with_layer(Layer)


def with_graphs(make: Callable[[GraphRunner], GraphRunner]) -> Plant:
    def plant(base: Base) -> Base:
        class Faulty(base):
            def graph_runner(self, device: Device) -> GraphRunner:
                return make(super().graph_runner(device))

        return Faulty

    return plant


def with_communicator(make: Callable[[Communicator], Communicator]) -> Plant:
    """make: from the group of all workers."""

    def plant(base: Base) -> Base:
        class Faulty(base):
            def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator:
                return make(collectives.join(base(), spec, rendezvous, device))

        return Faulty

    return plant
