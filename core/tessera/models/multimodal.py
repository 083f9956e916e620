"""A text model with a tower beside it, which makes features of images: they take the place of the embeddings of the
tokens that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tessera.layers.build import Build
from tessera.models.fields import Checkpoint
from tessera.models.through_transformers.tower import Tower
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.device import Arena, Device
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, Model, PoolingHead, SamplingHead

NOTE = "its tower for images runs through transformers' code, with this engine's matrix products"
SLOT = "media_slot"
"""The column: for each token of a launch, the slot of the feature that it stands for, -1 for none."""
BIT = "media"
"""The bit of launches with such a token. Others run as if there were no tower."""


def multimodal(text: Model, build: Build, checkpoint: Checkpoint) -> MultimodalModel:
    """The whole of a model whose text half is built. checkpoint: its config.json. Raises RefusedTypeError for a tower
    that cannot be served."""
    build.notes.append(NOTE)
    return MultimodalModel(text, Tower(build, checkpoint), tuple(build.notes), first=build.group.rank == 0)


class MultimodalModel:
    """slots: [features, hidden] on the device, the encoder cache. notes: of the whole. first: whether this is the rank
    among those that sum their embeddings which adds the features."""

    def __init__(self, text: Model, tower: Tower, notes: Sequence[str], *, first: bool) -> None:
        self.text, self.tower, self.first = text, tower, first
        self.facts = replace(text.facts, functional=False, notes=tuple(notes))
        self.slots: Tensor | None = None

    def allocate(self, number: int, device: Device, arena: Arena) -> None:
        """number: of slots."""
        shape = number, self.tower.hidden_size
        self.slots = arena.hold(torch.zeros(shape, dtype=torch_dtype(self.facts.dtype), device=device.target))

    def encode(self, inputs: Mapping[str, Tensor], slots: Tensor) -> None:
        """Computes the features of an image, and keeps them. slots: [n] int32, of each."""
        assert self.slots is not None
        self.slots.index_copy_(0, slots.long(), self.tower.encode(inputs).to(self.slots.dtype))

    @property
    def pooling(self) -> Mapping[str, PoolingHead]:
        return self.text.pooling

    @property
    def head(self) -> SamplingHead:
        return self.text.head

    def embed(self, tokens: Tensor) -> Tensor:
        return self.text.embed(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT in launch.key.bits and residual is None:
            x = self._merged(x, launch.columns[SLOT])
        return self.text.forward(x, launch, caches, residual)

    def _merged(self, x: Tensor, slots: Tensor) -> Tensor:
        """x, slots [T]."""
        assert self.slots is not None
        features = self.slots.index_select(0, slots.clamp(min=0)) if self.first else torch.zeros_like(x)
        return torch.where((slots >= 0)[:, None], features, x)

    def finish(self, hidden: Hidden) -> Tensor:
        return self.text.finish(hidden)

    def logits(self, rows: Tensor) -> Tensor:
        return self.text.logits(rows)
