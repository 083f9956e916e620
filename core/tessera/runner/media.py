"""Images and the like in prompts, the workers' half: computes features, and says which tokens stand for them, and which
positions tokens have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from tessera.platform.device import Arena
from tessera.platform.feature import Column, WorkerFeature
from tessera.platform.launch import Launch
from tessera.platform.model import Model, Product
from tessera.platform.ops import BoundOps
from tessera.step import MediaToEncode, RowMedia, RowOpened, SchedulerOutput

_RANGES = (FIRST_SOURCE, NUM_SOURCES, IMAGE_SHOWN)
"""The columns of what RowMedia.ranges says."""


class MediaInWorker(WorkerFeature):
    """It must be the first feature that wraps the model."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        checkpoint = config.model.checkpoint
        self._number = config.encoder_cache_tokens
        # Whether tokens see some that come after them.
        self._ahead = computes_whole(checkpoint) or sees_prompt(checkpoint)
        self._by_modality = tokens_around(checkpoint) is not None
        # Whether tokens see images through cross attention.
        self._tiled = tiled_encoder(checkpoint) is not None
        self._has_encoder = self._tiled or encoder_length(checkpoint) > 0
        # By row with images, of its tokens behind the prompt: [3, 1] int32, as of RowMedia.ranges.
        self._last: dict[int, Array] = {}
        # What the tokens of the current step stand for, by row.
        self._rows: dict[int, RowMedia] = {}
        # Of the rows that begin in the current step, the slots of what their encoder made.
        self._sources: dict[int, Array] = {}
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
        sources = (Column(SOURCES, "int32", internal=True),) if self._has_encoder else ()
        last = [Column(name, "int32", internal=True) for name in (LAST_FIRST, LAST_NUMBER) if self._tiled]
        ranges = [Column(name, "int32", each="token", internal=True) for name in _RANGES if self._tiled]
        return (slots, Column(SHIFT, "int32", internal=True), *ahead, *seen, *sources, *last, *ranges)

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        self._device, self._arena = ops.device, arena

    def wrap(self, model: Model) -> Model:
        if isinstance(model, MultimodalModel):
            model.allocate(self._number, self._device, self._arena)
        if isinstance(model, TextStage):
            self._model = model
        return model

    # ---- in steps

    def keys(self) -> frozenset[str]:
        return frozenset((IMAGES,)) if self._tiled else frozenset()

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        encodes = frozenset((BIT,)) if self._rows or self._sources else frozenset()
        return encodes | self.keys() if self._tiled and columns[SOURCES].any() else encodes

    def open(self, opened: Sequence[RowOpened]) -> bool:
        for one in opened:
            self._last.pop(one.row, None)
            if number := int(one.columns.get(LAST_NUMBER, 0)):
                self._last[one.row] = int32([int(one.columns[LAST_FIRST]), number, 1])[:, None]
            self._shifts.pop(one.row, None)
            if shift := int(one.columns.get(SHIFT, 0)):
                self._shifts[one.row] = shift
        return False

    def begin(self, step: SchedulerOutput) -> None:
        media = step.media
        self._rows = {} if media is None else {one.row: one for one in media.rows}
        self._sources = {} if media is None else {one.row: one.slots for one in media.sources}
        if media is None or not isinstance(self._model, MultimodalModel):
            return
        for number in media.dropped:
            del self._encodings[number]
        for one in media.encode:
            self._encode(self._model, one)

    def _encode(self, model: MultimodalModel, part: MediaToEncode) -> None:
        """Goes on with an image as far as its part in the step says."""
        if part.number not in self._encodings:
            inputs = {name: torch.from_numpy(value.copy()) for name, value in part.inputs.items()}
            self._encodings[part.number] = PartialEncoding(model.tower, part.modality, inputs)
        features = self._encodings[part.number].advance(part.done / len(part.slots))
        if part.done == len(part.slots):
            assert features is not None, "it was computed to its end"
            model.keep(features, torch.from_numpy(part.slots.copy()).to(self._device.target))
            del self._encodings[part.number]

    def before(self, launch: Launch) -> None:
        if isinstance(self._model, EncoderDecoder):
            self._begin_rows(self._model, launch)
            if IMAGES in launch.key.bits:
                self._show(launch)
        elif BIT in launch.key.bits:
            self._place(launch)
        if self._model is not None and self._model.axis_tables:
            self._turn(launch)

    def _begin_rows(self, model: EncoderDecoder, launch: Launch) -> None:
        """Says what the encoders of a launch's rows made that begin in it, in the order of Launch.slot_mapping."""
        rows = launch.rows_host[: launch.num_rows].tolist()
        begun = [self._sources[row] for row in rows if row in self._sources]
        model.sources = torch.from_numpy(np.concatenate(begun)).to(self._device.target) if begun else None

    def _show(self, launch: Launch) -> None:
        """Says which positions a launch's tokens see."""
        shown = np.zeros((3, launch.key.tokens), np.int32)
        for index, row in enumerate(launch.rows_host[: launch.num_rows].tolist()):
            media, begin = self._rows.get(row), int(launch.query_start_loc_host[index])
            end = begin + int(launch.query_lens_host[index])
            own = None if media is None else media.ranges
            shown[:, begin:end] = self._last.get(row, 0) if own is None else own
        for name, values in zip(_RANGES, shown, strict=True):
            self._device.to_device(values, launch.columns[name])

    def _place(self, launch: Launch) -> None:
        """Says which of a launch's tokens stand for features."""
        slots = np.full(launch.key.tokens, -1, np.int32)
        ahead, seen = np.zeros_like(slots), np.zeros_like(slots)
        starts = launch.seq_lens_host - launch.query_lens_host
        for index, row in enumerate(launch.rows_host[: launch.num_rows].tolist()):
            media = self._rows.get(row)
            if media is not None:
                first = int(launch.query_start_loc_host[index]) - int(starts[index])
                slots[media.places + first] = media.slots
                begin = int(launch.query_start_loc_host[index])
                if media.ahead is not None:
                    ahead[begin : begin + len(media.ahead)] = media.ahead
                if media.seen is not None:
                    seen[begin : begin + len(media.seen)] = media.seen
        self._device.to_device(slots, launch.columns[SLOT])
        if self._ahead:
            self._device.to_device(ahead, launch.columns[AHEAD])
        if self._by_modality:
            self._device.to_device(seen, launch.columns[SEEN])

    def _turn(self, launch: Launch) -> None:
        """Changes the positions of a launch's tokens: to those that they have on all axes, or, where these differ, to
        the spare rows of rotary tables, which it fills."""
        rows = launch.rows_host[: launch.num_rows].tolist()
        if not any(row in self._shifts or row in self._rows for row in rows):
            return
        assert self._model is not None
        lengths, firsts = launch.query_lens_host, launch.query_start_loc_host[:-1]
        starts = launch.seq_lens_host - lengths
        shifts = np.array([self._shifts.get(row, 0) for row in rows], np.int64)
        positions = np.zeros(launch.key.tokens, np.int32)
        most = slice(launch.num_rows)
        places = ranges(firsts[most].astype(np.int64), lengths[most])
        positions[places] = ranges(starts[most] + shifts, lengths[most])
        spare = self._model.axis_tables[0].positions
        apart: list[Array] = []
        for index, row in enumerate(rows):
            media = self._rows.get(row)
            if media is None or media.positions is None:
                continue
            own = media.positions
            differ = (own != own[0]).any(axis=0)
            mine = own[0].copy()
            number = int(np.count_nonzero(differ))
            mine[differ] = spare + np.arange(number)
            spare += number
            positions[firsts[index] : firsts[index] + len(mine)] = mine
            apart.append(own[:, differ])
        self._device.to_device(positions, launch.positions)
        if apart:
            together = torch.from_numpy(np.concatenate(apart, axis=1).astype(np.int64)).to(self._device.target)
            for table in self._model.axis_tables:
                table.fill(together)
