"""The same chip before its kernels were written, and with all that it can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.platform import (
    AttentionBackend,
    Device,
    GraphRunner,
    ModelFacts,
    OpSet,
    Platform,
    ShapePolicy,
)
from tessera_fakechip.graphs import graphs, shapes
from tessera_fakechip.platform import FakechipPlatform

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class Bronze(FakechipPlatform):
    """As generated: every op and attention on core's reference, collectives through the host."""

    name = "fakechip-bronze"
    communicator = Platform.communicator

    def ops(self, reference: OpSet) -> OpSet:
        return reference

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return ()


class Static(FakechipPlatform):
    """A few shapes alone, each captured once and replayed; prompts and answers in steps of their own."""

    name = "fakechip-static"
    capabilities = dataclasses.replace(FakechipPlatform.capabilities, static_shapes=True)

    def graph_runner(self, device: Device) -> GraphRunner | None:
        return graphs(device)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        return shapes(config)
