"""Images and the like in prompts, the workers' half: computes features, and says which tokens stand for them, and which
positions tokens have."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

import numpy as np
import torch

from tessera.arrays import Array, int32, ranges
from tessera.config import EngineConfig
from tessera.config.modalities import computes_whole, encoder_length, sees_prompt, tokens_around
from tessera.config.tiled_encoder import tiled_encoder
from tessera.features.media import LAST_FIRST, LAST_NUMBER, SHIFT
from tessera.models.mllama import IMAGE_SHOWN, IMAGES
from tessera.models.multimodal import BIT, SEEN, SLOT, EncoderDecoder, MultimodalModel, TextStage
from tessera.models.through_transformers.partial_encoding import PartialEncoding
from tessera.platform.attention import AHEAD, FIRST_SOURCE, NUM_SOURCES, SOURCES
from tessera.platform.device import Arena, Tensor
from tessera.platform.feature import Column, WorkerFeature
from tessera.platform.launch import Launch, LaunchRows
from tessera.platform.model import Model, Product
from tessera.platform.ops import BoundOps
from tessera.step import MediaToEncode, RowMedia, RowOpened, SchedulerOutput

_RANGES = (FIRST_SOURCE, NUM_SOURCES, IMAGE_SHOWN)
"""The columns of what RowMedia.ranges says."""


def media_in_worker(config: EngineConfig, option: str) -> MediaInWorker:
    """FEATURE.worker: how a model of this type sees what is beside its text."""
    checkpoint = config.model.checkpoint
    if tiled_encoder(checkpoint) is not None:
        return RangesInWorker(config)
    return EncoderInWorker(config) if encoder_length(checkpoint) else MediaInWorker(config)


class MediaInWorker(WorkerFeature):
    """Features take the place of tokens' embeddings. It must be the first feature that wraps the model."""

    def __init__(self, config: EngineConfig) -> None:
        checkpoint = config.model.checkpoint
        self._number = config.encoder_cache_tokens
        # Whether tokens see some that come after them.
        self._ahead = computes_whole(checkpoint) or sees_prompt(checkpoint)
        self._by_modality = tokens_around(checkpoint) is not None
        # What the tokens of the current step stand for, by row.
        self._rows: dict[int, RowMedia] = {}
        # Where tokens of the current step have positions on several axes: by row, their rows of the rotary tables.
        self._turned: dict[int, Array] = {}
        # What is added to the positions of a row's tokens behind its prompt, where it is not 0.
        self._shifts: dict[int, int] = {}
        self._model: TextStage | None = None
        # By number, those that later steps go on with.
        self._encodings: dict[int, PartialEncoding] = {}

    # ---- at load

    def columns(self) -> Sequence[Column]:
        slots = Column(SLOT, "int32", default=-1, each="token", internal=True)
        ahead = (Column(AHEAD, "int32", each="token", internal=True),) if self._ahead else ()
        seen = (Column(SEEN, "int32", each="token", internal=True),) if self._by_modality else ()
        return (slots, Column(SHIFT, "int32", internal=True), *ahead, *seen)

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        self._device, self._arena = ops.device, arena

    def wrap(self, model: Model) -> Model:
        if isinstance(model, MultimodalModel):
            model.allocate(self._number, self._device, self._arena)
        if isinstance(model, TextStage):
            self._model = model
        return model

    def tensors(self) -> Sequence[MutableMapping[str, Tensor]]:
        model = self._model
        if model is None:
            return ()
        features = (model.encoder_cache,) if isinstance(model, MultimodalModel) else ()
        return (*features, *(table.tensors for table in model.axis_tables))

    # ---- in steps

    def prompt_keys(self) -> frozenset[str]:
        return frozenset((BIT,))

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return self.prompt_keys() if self._rows else frozenset()

    def open(self, opened: Sequence[RowOpened]) -> bool:
        for one in opened:
            self._shifts.pop(one.row, None)
            if shift := int(one.columns.get(SHIFT, 0)):
                self._shifts[one.row] = shift
        return False

    def begin(self, step: SchedulerOutput) -> bool:
        media = step.media
        self._rows = {} if media is None else {one.row: one for one in media.rows}
        turned = self._turn()
        if media is None or not isinstance(self._model, MultimodalModel):
            return turned
        for number in media.dropped:
            self._encodings.pop(number, None)
        kept = [self._encode(self._model, one) for one in media.encode]  # each is asked, as ranks exchange features
        return turned or any(kept)

    def _encode(self, model: MultimodalModel, part: MediaToEncode) -> bool:
        """Goes on with an image as far as its part in the step says, if this worker encodes it. Whether its features
        are kept now, by all."""
        features = self._advance(model, part) if part.rank % model.group.size == model.group.rank else None
        if part.done < len(part.slots):
            return False
        model.keep(features, torch.from_numpy(part.slots.copy()).to(self._device.target))
        return True

    def _advance(self, model: MultimodalModel, part: MediaToEncode) -> Tensor | None:
        if part.number not in self._encodings:
            inputs = {name: torch.from_numpy(value.copy()) for name, value in part.inputs.items()}
            self._encodings[part.number] = PartialEncoding(model.tower, part.modality, inputs)
        features = self._encodings[part.number].advance(part.done / len(part.slots))
        if part.done == len(part.slots):
            assert features is not None, "it was computed to its end"
            del self._encodings[part.number]
        return features

    def _turn(self) -> bool:
        """Fills the spare rows of rotary tables for the step's tokens whose positions differ by axis. Whether there are
        any."""
        self._turned = {}
        if self._model is None or not self._model.axis_tables:
            return False
        spare, apart = self._model.axis_tables[0].positions, []
        for row, media in self._rows.items():
            if media.positions is None:
                continue
            differ = (media.positions != media.positions[0]).any(axis=0)
            number = int(np.count_nonzero(differ))
            turned = media.positions[0].copy()
            turned[differ] = spare + np.arange(number)
            spare += number
            self._turned[row] = turned
            if number:
                apart.append(media.positions[:, differ])
        if not apart:
            return False
        together = torch.from_numpy(np.concatenate(apart, axis=1).astype(np.int64)).to(self._device.target)
        for table in self._model.axis_tables:
            table.fill(together)
        return True

    # ---- in launches

    def token_columns(self, launch: LaunchRows) -> Mapping[str, Array]:
        if BIT not in launch.bits:
            return {}
        slots = np.full(launch.num_tokens, -1, np.int32)
        ahead, seen = np.zeros_like(slots), np.zeros_like(slots)
        for row, start, place in zip(launch.rows.tolist(), launch.starts.tolist(), launch.places.tolist(), strict=True):
            media = self._rows.get(row)
            if media is None:
                continue
            slots[media.places - start + place] = media.slots
            if media.ahead is not None:
                ahead[place : place + len(media.ahead)] = media.ahead
            if media.seen is not None:
                seen[place : place + len(media.seen)] = media.seen
        beside = ({AHEAD: ahead} if self._ahead else {}) | ({SEEN: seen} if self._by_modality else {})
        return {SLOT: slots, **beside}

    def positions(self, launch: LaunchRows) -> Array | None:
        rows = launch.rows.tolist()
        if self._model is None or not any(row in self._shifts or row in self._turned for row in rows):
            return None
        shifts = np.array([self._shifts.get(row, 0) for row in rows], np.int64)
        positions = np.zeros(launch.num_tokens, np.int32)
        places = ranges(launch.places.astype(np.int64), launch.counts)
        positions[places] = ranges(launch.starts + shifts, launch.counts)
        for row, place in zip(rows, launch.places.tolist(), strict=True):
            turned = self._turned.get(row)
            if turned is not None:
                positions[place : place + len(turned)] = turned
        return positions


class EncoderInWorker(MediaInWorker):
    """Tokens see what an encoder made through cross attention, and none stands for it."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        # Of the rows that begin in the current step, the slots of what their encoder made.
        self._sources: dict[int, Array] = {}

    def columns(self) -> Sequence[Column]:
        return (*super().columns(), Column(SOURCES, "int32", internal=True))

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return self.prompt_keys() if self._rows or self._sources else frozenset()

    def begin(self, step: SchedulerOutput) -> bool:
        self._sources = {} if step.media is None else {one.row: one.slots for one in step.media.sources}
        return super().begin(step)

    def before(self, launch: Launch) -> None:
        """Says what the encoders of a launch's rows made that begin in it, in the order of Launch.slot_mapping."""
        if isinstance(self._model, EncoderDecoder):
            rows = launch.rows_host[: launch.num_rows].tolist()
            begun = [self._sources[row] for row in rows if row in self._sources]
            sources = torch.from_numpy(np.concatenate(begun)).to(self._device.target) if begun else None
            self._model.sources = sources


class RangesInWorker(EncoderInWorker):
    """Each token sees a range of the positions that an encoder made of several images."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        # By row with images, of its tokens behind the prompt: [3, 1] int32, as of RowMedia.ranges.
        self._last: dict[int, Array] = {}

    def columns(self) -> Sequence[Column]:
        last = [Column(name, "int32", internal=True) for name in (LAST_FIRST, LAST_NUMBER)]
        ranges = [Column(name, "int32", each="token", internal=True) for name in _RANGES]
        return (*super().columns(), *last, *ranges)

    def keys(self) -> frozenset[str]:
        return frozenset((IMAGES,))

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return super().bits(columns) | (self.keys() if columns[SOURCES].any() else frozenset())

    def open(self, opened: Sequence[RowOpened]) -> bool:
        for one in opened:
            self._last.pop(one.row, None)
            if number := int(one.columns.get(LAST_NUMBER, 0)):
                self._last[one.row] = int32([int(one.columns[LAST_FIRST]), number, 1])[:, None]
        return super().open(opened)

    def token_columns(self, launch: LaunchRows) -> Mapping[str, Array]:
        if IMAGES not in launch.bits:
            return {}
        shown = np.zeros((len(_RANGES), launch.num_tokens), np.int32)
        for row, count, place in zip(launch.rows.tolist(), launch.counts.tolist(), launch.places.tolist(), strict=True):
            media = self._rows.get(row)
            own = None if media is None else media.ranges
            shown[:, place : place + count] = self._last.get(row, 0) if own is None else own
        return dict(zip(_RANGES, shown, strict=True))
