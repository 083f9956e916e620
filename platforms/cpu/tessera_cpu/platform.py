"""The Platform class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    Capabilities,
    Device,
    GraphRunner,
    HostDevice,
    MixerBackend,
    ModelFacts,
    OpSet,
    Platform,
    Reason,
    Scheme,
    WorkerSpec,
)
from tessera_cpu.allocator import settle_memory
from tessera_cpu.attention import SdpaAttention
from tessera_cpu.cross import CrossAttention
from tessera_cpu.cross_products import CrossProducts
from tessera_cpu.delta_net import GatedDeltaNet
from tessera_cpu.encoder import EncoderAttention
from tessera_cpu.latent import LatentAttention, SparseLatentAttention
from tessera_cpu.machine import figures, processor
from tessera_cpu.mamba2 import Mamba2
from tessera_cpu.native import library, use_threads
from tessera_cpu.ops import kernels
from tessera_cpu.paged import PagedAttention
from tessera_cpu.quantized import served
from tessera_cpu.short_convolution import ShortConvolution
from tessera_cpu.tape import TapeRunner

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class CpuPlatform(Platform):
    name = "cpu"
    capabilities = Capabilities(dtypes=("bfloat16", "float32", "float16"), index_dtype="int32", async_dispatch=False)

    def open(self, index: int) -> Device:
        native = library()
        if native is not None:
            use_threads(native, torch.get_num_threads())
        return HostDevice(torch, figures(), processor())

    def enter_process(self, spec: WorkerSpec) -> None:
        if not spec.shared:
            settle_memory(figures().free)

    def ops(self, reference: OpSet) -> OpSet:
        return kernels(reference)

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        return served(scheme)

    def batch_invariant(self, config: EngineConfig, model: ModelFacts) -> Reason | None:
        if model.dtype != "bfloat16":
            return f"only products in bfloat16 are summed in one order, not those in {model.dtype} (--dtype bfloat16)"
        if config.parallel.tensor_parallel_size > 1:
            return "workers sum their parts in an order that depends on the number of rows (--tensor-parallel-size 1)"
        return None

    def graph_runner(self, device: Device) -> GraphRunner | None:
        native = library()
        return None if native is None else TapeRunner(native)

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        native = library()
        if native is None:
            return SdpaAttention(), CrossProducts()
        attention = PagedAttention(native), SdpaAttention(), EncoderAttention(native)
        crossing = CrossAttention(native), CrossProducts()
        latent = LatentAttention(native), SparseLatentAttention(native)
        return *attention, *crossing, *latent, GatedDeltaNet(native), Mamba2(native), ShortConvolution(native)
