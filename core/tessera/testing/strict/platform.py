"""The strict platform, and its variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.platform.attention import AttentionBackend
from tessera.platform.device import Device
from tessera.platform.graph import GraphRunner
from tessera.platform.launch import ShapePolicy, StepRules
from tessera.platform.model import ModelFacts
from tessera.platform.ops import OpSet, replace
from tessera.platform.platform import Capabilities, Platform
from tessera.testing.strict.attention import BLOCK_SIZE, StrictAttention
from tessera.testing.strict.device import StrictDevice
from tessera.testing.strict.graphs import Current, RecordingGraphs
from tessera.testing.strict.kernels import BufferedLinear, BufferedMLP, PoisonedEmbedding, ScalingNorm
from tessera.testing.strict.shapes import PREFILL_ROWS, PREFILL_WIDTHS, Buckets

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class StrictPlatform(Platform):
    name = "strict"
    capabilities = Capabilities(
        dtypes=("float32", "bfloat16"), index_dtype="int32", async_dispatch=True, static_shapes=True, capture=True
    )

    def __init__(self) -> None:
        self.current = Current()

    def open(self, index: int) -> Device:
        return StrictDevice()

    def ops(self, reference: OpSet) -> OpSet:
        return replace(
            reference,
            embedding=PoisonedEmbedding(self.current),
            linear=BufferedLinear(),
            rms_norm=ScalingNorm(),
            gated_mlp=BufferedMLP(),
        )

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (StrictAttention(self.current),)

    def graph_runner(self, device: Device) -> GraphRunner:
        return RecordingGraphs(self.current)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return Buckets(-(-config.model.max_model_len // BLOCK_SIZE))

    def step_rules(self, model: ModelFacts) -> StepRules:
        return StepRules(max_prefill_rows=3, chunk_multiple=8, max_tokens_per_request=max(PREFILL_WIDTHS))


class SeparateStrictPlatform(StrictPlatform):
    """The variant in which a step holds either prefill or decode."""

    def step_rules(self, model: ModelFacts) -> StepRules:
        return StepRules(
            mix_prefill_decode=False,
            max_prefill_rows=PREFILL_ROWS,
            chunk_multiple=8,
            max_tokens_per_request=max(PREFILL_WIDTHS),
        )
