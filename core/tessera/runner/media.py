"""Images and the like in prompts, the workers' half: computes features, and says which tokens stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tessera.arrays import Array
from tessera.config import EngineConfig
from tessera.models.multimodal import BIT, SLOT, MultimodalModel
from tessera.platform.device import Arena
from tessera.platform.feature import Column, WorkerFeature
from tessera.platform.launch import Launch
from tessera.platform.model import Model, Product
from tessera.platform.ops import BoundOps
from tessera.step import RowMedia, SchedulerOutput


class MediaInWorker(WorkerFeature):
    """It must be the first feature that wraps the model."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        self._number = config.encoder_cache_tokens
        # What the tokens of the current step stand for, by row.
        self._rows: dict[int, RowMedia] = {}
        self._model: MultimodalModel | None = None

    def columns(self) -> Sequence[Column]:
        return (Column(SLOT, "int32", default=-1, each="token", internal=True),)

    def attach(self, products: Sequence[Product], ops: BoundOps, arena: Arena) -> None:
        self._device, self._arena = ops.device, arena

    def wrap(self, model: Model) -> Model:
        if isinstance(model, MultimodalModel):
            model.allocate(self._number, self._device, self._arena)
            self._model = model
        return model

    def bits(self, columns: Mapping[str, Array]) -> frozenset[str]:
        return frozenset((BIT,)) if self._rows else frozenset()

    def begin(self, step: SchedulerOutput) -> None:
        media = step.media
        self._rows = {} if media is None else {one.row: one for one in media.rows}
        if media is None or self._model is None:
            return
        for one in media.encode:
            inputs = {name: torch.from_numpy(value.copy()) for name, value in one.inputs.items()}
            self._model.encode(inputs, torch.from_numpy(one.slots.copy()).to(self._device.target))

    def before(self, launch: Launch) -> None:
        if BIT not in launch.key.bits:
            return
        slots = np.full(launch.key.tokens, -1, np.int32)
        starts = launch.seq_lens_host - launch.query_lens_host
        for index, row in enumerate(launch.rows_host[: launch.num_rows].tolist()):
            media = self._rows.get(row)
            if media is not None:
                first = int(launch.query_start_loc_host[index]) - int(starts[index])
                slots[media.places + first] = media.slots
        self._device.to_device(slots, launch.columns[SLOT])
