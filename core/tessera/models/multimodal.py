"""A text model with a tower beside it, which makes features of images or sounds: they take the place of the embeddings
of the tokens that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tessera.config.modalities import NOUNS
from tessera.config.tiled_encoder import tiled_encoder
from tessera.layers.build import Build
from tessera.models.cross_decoder import CrossDecoder
from tessera.models.deepstack import DeepstackDecoder
from tessera.models.dual_encoder import DualText
from tessera.models.fields import Checkpoint, RefusedTypeError
from tessera.models.modality_experts import ModalityDecoder
from tessera.models.through_transformers.encoder_tower import EncoderTower
from tessera.models.through_transformers.model import ThroughTransformers
from tessera.models.through_transformers.tower import TiledTower, Tower
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import Caches
from tessera.platform.device import Arena, Device
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden, Model, PoolingHead, SamplingHead

NOTE = "its tower for {} runs through transformers' code, with this engine's matrix products"
ENCODER_NOTE = "its encoder runs through transformers' code, with this engine's matrix products"
SLOT = "media_slot"
"""The column: for each token of a launch, the slot of the feature that it stands for, -1 for none."""
SEEN = "media_seen"
"""The column: for each token of a launch, whether experts for images take it."""
BIT = "media"
"""The bit of launches with such a token. Others run as if there were no tower."""


def multimodal(text: Model, build: Build, checkpoint: Checkpoint) -> TextStage:
    """The whole of a model whose text half is built, or of this stage of it. checkpoint: its config.json. Raises
    RefusedTypeError for a tower that cannot be served."""
    of_text = len(build.parameters)
    whole = _whole(text, build, checkpoint)
    build.tower_parameters += build.parameters[of_text:]
    return whole


def _whole(text: Model, build: Build, checkpoint: Checkpoint) -> TextStage:
    if not build.is_first_stage:
        return TextStage(text, build)
    if isinstance(text, CrossDecoder) and tiled_encoder(checkpoint) is None:
        build.notes.append(ENCODER_NOTE)
        return EncoderDecoder(text, EncoderTower(build, checkpoint), build)
    build.notes.append(NOTE.format(" and ".join(f"{NOUNS[name]}s" for name in build.modalities)))
    if isinstance(text, CrossDecoder):
        return EncoderDecoder(text, TiledTower(build, checkpoint), build)
    tower = Tower(build, checkpoint)
    if isinstance(text, DualText):
        return DualModel(text, tower, build)
    if isinstance(text, ModalityDecoder):
        return ModalityModel(text, tower, build)
    if isinstance(text, ThroughTransformers) and text.takes_tokens:
        if tower.depths or not text.embeds_by_layer:
            raise RefusedTypeError("its text model takes tokens, and no features in place of some")
        return LayerwiseModel(text, tower, build)
    if not tower.depths:
        return MultimodalModel(text, tower, build)
    if not isinstance(text, DeepstackDecoder | ThroughTransformers):
        raise RefusedTypeError("its text model does not take features of several levels")
    text.add_behind(tower.depths)
    return DeepstackModel(text, tower, build)


class TextStage:
    """A stage of the text model. axis_tables: of it, if tokens have positions on several axes. Features enter the first
    stage alone."""

    def __init__(self, text: Model, build: Build) -> None:
        self.text, self.axis_tables = text, build.axis_tables
        self.facts = replace(text.facts, notes=tuple(build.notes))

    @property
    def pooling(self) -> Mapping[str, PoolingHead]:
        return self.text.pooling

    @property
    def head(self) -> SamplingHead:
        return self.text.head

    def embed(self, tokens: Tensor) -> Tensor:
        return self.text.embed(tokens)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        return self.text.forward(x, launch, caches, residual)

    def finish(self, hidden: Hidden) -> Tensor:
        return self.text.finish(hidden)

    def logits(self, rows: Tensor) -> Tensor:
        return self.text.logits(rows)


class MultimodalModel(TextStage):
    """encoder_cache: "slots", [features, hidden of all levels]. adds: whether this rank adds the features: the first of
    those that sum their embeddings, or each where all have the whole sum."""

    def __init__(self, text: Model, tower: Tower | EncoderTower, build: Build) -> None:
        super().__init__(text, build)
        self.tower, self.group, self.adds = tower, build.group, build.group.rank == 0 or text.facts.stage_tensors == 1
        self.encoder_cache: dict[str, Tensor] = {}

    def allocate(self, number: int, device: Device, arena: Arena) -> None:
        """number: of slots, each with the features of all levels."""
        shape = number, self.tower.hidden_size * self.tower.levels
        slots = torch.zeros(shape, dtype=torch_dtype(self.facts.dtype), device=device.target)
        self.encoder_cache["slots"] = arena.hold(slots)

    def keep(self, features: Tensor | None, slots: Tensor) -> None:
        """Keeps what a tower made of an image or a sound, on all ranks. features [n, hidden of all levels]: None where
        another rank has them; slots: [n] int32."""
        cache = self.encoder_cache["slots"]
        made = cache.new_zeros(len(slots), cache.shape[-1]) if features is None else features.to(cache.dtype)
        cache.index_copy_(0, slots.long(), self.group.all_reduce(made) if self.group.size > 1 else made)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT in launch.key.bits:
            there, features = self.features(launch)
            x = torch.where(there, features, x)
        return self.text.forward(x, launch, caches, residual)

    def features(self, launch: Launch) -> tuple[Tensor, Tensor]:
        """Which tokens stand for features [T, 1], and these [T, hidden of all levels], those of other tokens being
        any."""
        slots = launch.columns[SLOT]
        features = self.encoder_cache["slots"].index_select(0, slots.clamp(min=0))
        return (slots >= 0)[:, None], features if self.adds else torch.zeros_like(features)


class DeepstackModel(MultimodalModel):
    """Shows images to its text model at several depths: a feature's first level takes the place of a token's embedding,
    or nothing does where all levels are for depths."""

    text: DeepstackDecoder | ThroughTransformers
    tower: Tower

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT not in launch.key.bits:
            return self.text.forward(x, launch, caches, residual)
        there, features = self.features(launch)
        levels = features.chunk(self.tower.levels, dim=-1)
        count = len(self.tower.depths)
        self.text.added = [torch.where(there, level, 0.0) for level in levels[-count:]]
        first = levels[0] if len(levels) > count else 0.0
        try:
            return self.text.forward(torch.where(there, first, x), launch, caches, residual)
        finally:
            self.text.added = ()


class ModalityModel(MultimodalModel):
    """Its text model has experts for images."""

    text: ModalityDecoder

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        self.text.seen = (launch.columns[SEEN] > 0)[:, None] if BIT in launch.key.bits else None
        return super().forward(x, launch, caches, residual)


class LayerwiseModel(MultimodalModel):
    """Its text model has an embedding of tokens for each of its layers too, so it takes them and says itself what
    stands for an image there (Gemma 3n, Gemma 4)."""

    text: ThroughTransformers

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT in launch.key.bits:
            self.text.features = self.features(launch)
        try:
            return self.text.forward(x, launch, caches, residual)
        finally:
            self.text.features = None


class EncoderDecoder(MultimodalModel):
    """Its text model sees what its encoder made through cross attention, and no token stands for it. sources [N]: the
    slots of what was made for the rows that begin in the next launch, in the order of the launch's slots; None if none
    does."""

    text: CrossDecoder
    sources: Tensor | None = None

    def __init__(self, text: CrossDecoder, tower: Tower | EncoderTower, build: Build) -> None:
        super().__init__(text, tower, build)
        self.facts = replace(self.facts, functional=False)  # sources are another tensor in each launch

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if BIT in launch.key.bits and self.sources is not None:
            features = self.encoder_cache["slots"].index_select(0, self.sources)
            self.text.write(features, launch, caches)
        return self.text.forward(x, launch, caches, residual)


class DualModel(MultimodalModel):
    """Its text model reads no images: the feature of an image is its vector, in place of what the text model makes of
    the one token that stands for it."""

    text: DualText

    def __init__(self, text: DualText, tower: Tower, build: Build) -> None:
        super().__init__(text, tower, build)
        self.adds = True  # vectors are whole on each rank

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        rows = self.text.finish(self.text.forward(x, launch, caches, residual))
        if BIT in launch.key.bits:
            there, features = (launch.select_logits(one) for one in self.features(launch))
            rows = torch.where(there, features, rows)
        return Hidden(rows, None)

    def finish(self, hidden: Hidden) -> Tensor:
        return hidden.last
