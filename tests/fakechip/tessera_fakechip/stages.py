"""The same chip before its kernels were written, and with all that it can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tessera.platform import (
    AttentionBackend,
    Device,
    GraphRunner,
    ModelFacts,
    OpSet,
    Platform,
    ShapePolicy,
    StepRules,
)
from tessera_fakechip.graphs import graphs
from tessera_fakechip.platform import FakechipPlatform
from tessera_fakechip.shapes import WIDTHS, Buckets

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
    capabilities = replace(FakechipPlatform.capabilities, static_shapes=True, capture=True)

    def graph_runner(self, device: Device) -> GraphRunner | None:
        return graphs(device)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return Buckets(config.model.max_model_len, config.scheduler.max_decode_tokens)

    def step_rules(self, model: ModelFacts) -> StepRules:
        return StepRules(mix_prefill_decode=False, chunk_multiple=8, max_tokens_per_request=max(WIDTHS))
