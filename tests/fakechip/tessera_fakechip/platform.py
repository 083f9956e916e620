"""The platforms. FakechipBronze is all that a chip with a torch device needs; the others say what they do better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Device,
    GraphRunner,
    ModelFacts,
    OpSet,
    Platform,
    ShapePolicy,
    StepRules,
    TorchDevice,
    WorkerSpec,
)
from tessera_fakechip.attention import BlockAttention
from tessera_fakechip.graph import Graphs
from tessera_fakechip.ops import kernels
from tessera_fakechip.shapes import WIDTHS, Buckets

if TYPE_CHECKING:
    from tessera.config import EngineConfig

_DTYPES = ("bfloat16", "float32", "float16")


class FakechipBronze(Platform):
    """Every op and attention on core's reference."""

    name = "fakechip-bronze"
    capabilities = Capabilities(dtypes=_DTYPES, index_dtype="int32")

    def enter_process(self, spec: WorkerSpec) -> None:
        import torch_fakechip  # noqa: F401  # makes fakechip a device of torch's

    def open(self, index: int) -> Device:
        return TorchDevice(torch, "fakechip", index)


class Fakechip(FakechipBronze):
    """Own kernels and attention, launches of any shape."""

    name = "fakechip"

    def ops(self, reference: OpSet) -> OpSet:
        return kernels(reference)

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (BlockAttention(),)


class FakechipStatic(Fakechip):
    """A few shapes alone, each captured once and replayed; prompts and answers in steps of their own."""

    name = "fakechip-static"
    capabilities = Capabilities(dtypes=_DTYPES, index_dtype="int32", static_shapes=True, capture=True)

    def graph_runner(self, device: Device) -> GraphRunner:
        return Graphs()

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return Buckets(config.model.max_model_len)

    def step_rules(self, model: ModelFacts) -> StepRules:
        return StepRules(mix_prefill_decode=False, chunk_multiple=8, tokens_per_grant=max(WIDTHS))
