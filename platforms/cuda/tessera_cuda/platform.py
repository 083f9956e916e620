"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Communicator,
    Device,
    GraphRunner,
    ModelFacts,
    OpSet,
    Platform,
    PlatformError,
    ShapePolicy,
    TorchCommunicator,
    TorchDevice,
    WorkerSpec,
    replace,
)
from tessera_cuda.driver import DriverError, cards
from tessera_cuda.graphs import graphs, shapes
from tessera_cuda.probe import OLDEST
from tessera_triton import DeviceFacts, TritonAttention, kernels

if TYPE_CHECKING:
    from tessera.config import EngineConfig

SMALLEST_BLOCK = 16
"""Tokens of the smallest block that a backend here uses."""


class CudaPlatform(Platform):
    """kind: torch's name of the device."""

    name = "cuda"
    kind = "cuda"
    capabilities = Capabilities(dtypes=("bfloat16", "float16", "float32"), index_dtype="int32")

    def open(self, index: int) -> Device:
        if not torch.cuda.is_available():
            raise PlatformError("this torch has no CUDA, or finds no card; install a CUDA build of torch.")
        torch.cuda.set_device(index)
        device = TorchDevice(torch, self.kind, index)
        device.name = torch.cuda.get_device_name(index)
        return device

    def facts(self) -> DeviceFacts | None:
        """Of the first card; None if it has no kernels. All cards of one engine are of one kind."""
        try:
            card = cards()[0]
        except DriverError as error:
            raise PlatformError(f"{error}; the platform 'cuda' needs an NVIDIA card and its driver.") from error
        if card.capability < OLDEST:
            return None
        fp8 = "float8_e4m3fn" if card.capability >= 89 else None
        return DeviceFacts("cuda", card.capability, 32, card.shared_bytes, card.processors, card.capability >= 90, fp8)

    def ops(self, reference: OpSet) -> OpSet:
        facts = self.facts()
        return reference if facts is None else replace(reference, **kernels(facts))

    def attention_backends(self) -> Sequence[AttentionBackend]:
        facts = self.facts()
        return () if facts is None else (TritonAttention(facts),)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return TorchCommunicator.join(torch, "nccl", rendezvous, spec.rank, spec.world_size, capturable=True)

    def graph_runner(self, device: Device) -> GraphRunner | None:
        return graphs(torch, device)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        return shapes(config, config.cache.block_size or SMALLEST_BLOCK)
