"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    Capabilities,
    Communicator,
    CompiledGraphs,
    CompiledPlatform,
    Device,
    FunctionalCommunicator,
    GraphRunner,
    ModelFacts,
    PlatformError,
    Problem,
    WorkerSpec,
    with_ranks,
)
from tessera_neuron.device import NeuronDevice

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class NeuronPlatform(CompiledPlatform):
    """Blocks of 128 tokens fill the partitions of a NeuronCore's on-chip memory."""

    name = "neuron"
    package = "torch_neuronx"
    install = (
        "install the Neuron driver and runtime, and the torch-neuronx of torch {torch} from the vendor's package index"
    )
    capabilities = Capabilities(
        dtypes=("bfloat16", "float16", "float32"), index_dtype="int32", static_shapes=True
    )  # the device has no 64-bit integers
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        super().enter_process(spec)
        if not hasattr(self.torch, "neuron"):
            raise PlatformError(
                "this torch-neuronx brings no device of torch; install version 2.13 or newer, for Trn2 and Trn3."
            )

    def placement(self, parallel: Any) -> Sequence[WorkerSpec]:
        """The runtime gives each process the NeuronCores of its local rank."""
        return with_ranks(parallel)

    def open(self, index: int) -> Device:
        return NeuronDevice.open(self.torch, "neuron", index)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return FunctionalCommunicator.join(
            self.torch, "neuron", rendezvous, spec.rank, spec.world_size, capturable=True
        )

    def graph_runner(self, device: Device) -> GraphRunner:
        return CompiledGraphs(self.torch, device, "neuron")

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        if config.parallel.pipeline_parallel_size > 1:
            return [
                Problem("torch-neuronx sends nothing from rank to rank; use --tensor-parallel-size for all devices")
            ]
        return ()
