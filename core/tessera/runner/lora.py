"""LoRA adapters, the workers' half: their weights in slots, and the op `lora` after each product that they may change.

A product joins linear layers of the checkpoint (q, k and v; gate and up) and has a shard of them, which the loader's
table of parts says. Adapters follow the same table. If a layer's inputs are sharded, the delta is a partial sum as the
product's own result is, so adapters need no collectives of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.config import EngineConfig
from tessera.config.lora import WEIGHTS, Adapter, read_adapter, tensor_name
from tessera.config.model_folder import open_weights
from tessera.errors import ModelError, printable
from tessera.features.lora import SLOT
from tessera.lora import NAME
from tessera.ops import LoraSpec
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.device import Arena
from tessera.platform.feature import Column, WorkerFeature
from tessera.platform.launch import Launch
from tessera.platform.lora import LoraWeights
from tessera.platform.model import Hidden, Model, PoolingHead, Product, SamplingHead
from tessera.platform.ops import Attached, BoundOps, HotCall, Packed, Wrapper
from tessera.step import RowOpened

BIT = "lora"
"""The bit of launches in which a row has an adapter. Other launches run as if there were none."""

_INTEGERS = {2: "int16", 4: "int32"}
_INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits that are all set in infinity and in NaN, and in no other number."""
Halves = tuple[Array, Array]
"""A [layers * rank, k] and B [rank, n] of a product, on the host: the bits of the model's dtype as integers, because
NumPy has no bfloat16."""


class LoraInWorker(WorkerFeature):
    """slots: the slot of each row of the activations that are being computed; None in launches without adapters.
    Adapters of --lora-modules are kept in host memory, so that exchanging one reads no file."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        self.number, self.max_rank = config.lora.slots, config.lora.max_rank
        self.slots: Tensor | None = None
        self.loaded: list[str] = [""] * self.number  # the adapter in each slot
        self._modules = [folder for _, folder in config.lora.modules]
        self._host_adapters: dict[str, tuple[float, Sequence[Halves | None]]] = {}
        self._products: list[AdaptedProduct] = []
        self._layers: dict[str, tuple[int, int]] = {}
        self._scales: dict[str, Tensor] = {}  # one, as tensors() hands it out

    # ---- at load

    def columns(self) -> Sequence[Column]:
        return (Column(SLOT, "int32", default=-1, each="token", internal=True),)

    def keys(self) -> frozenset[str]:
        return frozenset((BIT,))

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return self.keys() if (columns[SLOT] >= 0).any() else frozenset()

    def wrappers(self) -> Mapping[str, Wrapper]:
        return {"linear": Wrapper(self._around, lambda: self.slots is not None)}

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        self._scales["scales"] = arena.hold(torch.zeros(self.number, device=ops.device.target))
        for product in products:
            self._products.append(AdaptedProduct(product, ops, self.number, self.max_rank, arena))
            self._layers.update({layer.name: (layer.k, layer.n) for layer in product.layers})
            product.attach(self._products[-1])
        if self._scales["scales"].is_meta:
            return
        for number, folder in enumerate(dict.fromkeys(self._modules)):
            self._host_adapters[folder] = self._read(folder)
            if number < self.number:
                self._fill(number, folder)

    def wrap(self, model: Model) -> Model:
        return AdaptedModel(model, self)

    def tensors(self) -> Sequence[MutableMapping[str, Tensor]]:
        return [self._scales, *(product.tensors for product in self._products)]

    def _around(self, spec: Any, call: HotCall) -> HotCall:
        def linear(x: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            y: Tensor = call(x, weight, out=out)
            if self.slots is not None and isinstance(weight, Attached):
                weight.attached.add(y, x, self._scales["scales"], self.slots)
            return y

        return linear

    # ---- in steps

    def open(self, opened: Sequence[RowOpened]) -> bool:
        filled = False
        for row in opened:
            slot = int(row.columns.get(SLOT, -1))
            if slot >= 0 and self.loaded[slot] != (adapter := row.feature_args[NAME]):
                self._fill(slot, adapter)
                filled = True
        return filled

    def _fill(self, slot: int, folder: str) -> None:
        scale, halves = self._host_adapters.get(folder) or self._read(folder)
        self._scales["scales"][slot] = scale
        for product, both in zip(self._products, halves, strict=True):
            product.fill(slot, both)
        self.loaded[slot] = folder

    def _read(self, folder: str) -> tuple[float, Sequence[Halves | None]]:
        """An adapter's scale, and its part of each product. Raises ModelError if it is broken or of another model."""
        adapter = read_adapter(folder, self.max_rank)
        reason = adapter.mismatch(self._layers)
        if reason is not None:
            raise ModelError(f"The adapter '{printable(folder)}' cannot be used: {reason}.")
        tensor = open_weights(adapter.folder, WEIGHTS, "pt").get_tensor
        return adapter.scale, [product.read(adapter, tensor) for product in self._products]


def read_lora_weights(folder: str, max_rank: int) -> LoraWeights:
    """An adapter as a platform's own runner takes it. Raises ModelError if it is broken."""
    read = read_adapter(folder, max_rank)
    tensor = open_weights(read.folder, WEIGHTS, "pt").get_tensor
    halves = {name: (tensor(tensor_name(name, "A")), tensor(tensor_name(name, "B"))) for name in read.layers}
    return LoraWeights(read.scale, halves)


class AdaptedProduct:
    """The adapters of one product. tensors: a [slots, layers * rank, k] and b [slots, rank, n], whose unused rows are
    0."""

    def __init__(self, product: Product, ops: BoundOps, slots: int, rank: int, arena: Arena) -> None:
        self.product, self.rank, self._device = product, rank, ops.device
        sizes = tuple(len(layer.outputs) for layer in product.layers)
        k, dtype, target = product.spec.k, product.spec.dtype, ops.device.target
        shapes = {"a": (slots, len(sizes) * rank, k), "b": (slots, rank, sum(sizes))}
        self.tensors = {
            half: arena.hold(torch.zeros(shape, dtype=torch_dtype(dtype), device=target))
            for half, shape in shapes.items()
        }
        self._call = ops.bind("lora", LoraSpec(sizes, k, rank, slots, dtype))

    def add(self, y: Tensor, x: Tensor, scales: Tensor, slots: Tensor) -> None:
        self._call(y, x, self.tensors["a"], self.tensors["b"], scales, slots)

    def read(self, adapter: Adapter, tensor: Callable[[str], Tensor]) -> Halves | None:
        """This rank's shard of an adapter's weights; None if it changes no layer of the product. tensor: reads one of
        the adapter's tensors. Raises ModelError for NaN and infinity, which would reach other rows: 0 * NaN is NaN."""
        if not any(layer.name in adapter.layers for layer in self.product.layers):
            return None
        halves = [np.zeros(half.shape[1:], _INTEGERS[half.element_size()]) for half in self.tensors.values()]
        a, b = (torch.from_numpy(half).view(self.tensors["a"].dtype) for half in halves)
        first = 0
        for place, layer in enumerate(self.product.layers):
            if layer.name in adapter.layers:
                narrow, wide = (tensor(tensor_name(layer.name, half)) for half in "AB")
                start, stop = layer.inputs
                a[place * self.rank : place * self.rank + adapter.rank] = narrow[:, start:stop]
                b[: adapter.rank, first : first + len(layer.outputs)] = wide[list(layer.outputs)].T
            first += len(layer.outputs)
        kind = self.product.spec.dtype
        infinity = _INFINITY[kind]
        if any((half & infinity == infinity).any() for half in halves):
            raise ModelError(
                f"'{printable(adapter.folder / WEIGHTS)}' holds NaN or infinity in {kind}; train it again."
            )
        return halves[0], halves[1]

    def fill(self, slot: int, halves: Halves | None) -> None:
        for own, half in zip(self.tensors.values(), halves or (None, None), strict=True):
            if half is None:
                own[slot].zero_()
            else:
                self._device.to_device(half, own[slot].view(torch_dtype(half.dtype.name)))


class AdaptedModel:
    """A model whose forward pass tells the wrapped products which slot each row of their input has."""

    def __init__(self, model: Model, feature: LoraInWorker) -> None:
        self.model, self.feature, self.facts = model, feature, model.facts

    @property
    def pooling(self) -> Mapping[str, PoolingHead]:
        return self.model.pooling

    @property
    def head(self) -> SamplingHead:
        return self.model.head

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.embed(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT not in launch.key.bits:
            return self.model.forward(x, launch, caches, residual)
        selecting = _Selecting(**{field.name: getattr(launch, field.name) for field in fields(Launch)})
        selecting.feature = self.feature
        self.feature.slots = launch.columns[SLOT]
        try:
            return self.model.forward(x, selecting, caches, residual)
        finally:
            self.feature.slots = None

    def finish(self, hidden: Hidden) -> Tensor:
        return self.model.finish(hidden)

    def logits(self, rows: Tensor) -> Tensor:
        return self.model.logits(rows)


class _Selecting(Launch):
    """A launch that notices when the model goes on with the tokens whose logits are wanted: their slots come next."""

    feature: LoraInWorker

    def select_logits(self, states: Tensor) -> Tensor:
        self.feature.slots = super().select_logits(self.columns[SLOT])
        return super().select_logits(states)
