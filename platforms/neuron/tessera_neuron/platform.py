"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    AttentionBackend,
    BucketedShapes,
    Capabilities,
    Communicator,
    CompiledGraphs,
    Default,
    Device,
    FunctionalCommunicator,
    GraphRunner,
    ModelFacts,
    Platform,
    PlatformError,
    Problem,
    ShapePolicy,
    StepRules,
    WorkerSpec,
    doubled,
    with_ranks,
)
from tessera_neuron.attention import BLOCK, LEAST_BLOCK, SdpaAttention
from tessera_neuron.device import NeuronDevice

if TYPE_CHECKING:
    from tessera.config import EngineConfig

PROMPT_TOKENS = doubled(128, 2048)
"""Tokens of launches with a prompt, which come one by one."""
FEWEST_BLOCKS = 4
"""Columns of the narrowest block table that launches are compiled for."""


class NeuronPlatform(Platform):
    """torch: the library, so that tests can pass another."""

    name = "neuron"
    capabilities = Capabilities(
        dtypes=("bfloat16", "float16", "float32"), index_dtype="int32", static_shapes=True
    )  # the device has no 64-bit integers
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        try:
            import_module("torch_neuronx")
        except (ImportError, OSError) as error:
            said = str(error).partition("\n")[0]
            raise PlatformError(
                f"platform 'neuron' needs torch-neuronx ({said}); install the Neuron driver and runtime, and the "
                f"torch-neuronx of torch {self.torch.__version__} from the vendor's package index."
            ) from error
        if not hasattr(self.torch, "neuron"):
            raise PlatformError(
                "this torch-neuronx brings no device of torch; install version 2.13 or newer, for Trn2 and Trn3."
            )

    def placement(self, parallel: Any) -> Sequence[WorkerSpec]:
        """The runtime gives each process the NeuronCores of its local rank."""
        return with_ranks(parallel)

    def open(self, index: int) -> Device:
        return NeuronDevice.open(self.torch, "neuron", index)

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (SdpaAttention(self.torch),)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return FunctionalCommunicator.join(
            self.torch, "neuron", rendezvous, spec.rank, spec.world_size, capturable=True
        )

    def graph_runner(self, device: Device) -> GraphRunner:
        return CompiledGraphs(self.torch, device, "neuron")

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return BucketedShapes.doubling(config, config.cache.block_size or LEAST_BLOCK, PROMPT_TOKENS, FEWEST_BLOCKS)

    def step_rules(self, model: ModelFacts) -> StepRules:
        return BucketedShapes(decode_rows=(1,), prompt_tokens=PROMPT_TOKENS).rules()

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        return {"cache.block_size": Default(BLOCK, "fewer columns of block tables, so fewer shapes to compile")}

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        if config.parallel.pipeline_parallel_size > 1:
            return [
                Problem("torch-neuronx sends nothing from rank to rank; use --tensor-parallel-size for all devices")
            ]
        return ()
