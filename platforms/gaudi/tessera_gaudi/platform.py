"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from tessera.platform import (
    AttentionBackend,
    Capabilities,
    Communicator,
    CompiledPlatform,
    Device,
    GraphRunner,
    ModuleDevice,
    OpSet,
    Reason,
    Scheme,
    TorchCommunicator,
    TorchGraphs,
    WorkerSpec,
    graph_class,
    replace,
    vendor_object,
    vendor_op,
    with_ranks,
)
from tessera_gaudi import fp8
from tessera_gaudi.attention import FusedAttention
from tessera_gaudi.graphs import HpuGraph
from tessera_gaudi.ops import EXPERTS, EXPERTS_TAKES, MODES, NORM, ROTATE, Experts, RMSNorm, Rotary

ATTENTION = "habana_frameworks.torch.hpex.kernels:FusedSDPA"
IS_LAZY = "habana_frameworks.torch.utils.internal:is_lazy"
"""Whether SynapseAI collects ops into graphs, as it decided when it was imported."""


class GaudiPlatform(CompiledPlatform):
    """One process has one accelerator, hpu:0, which SynapseAI chooses by the process's rank. A read of a block of fewer
    than 128 tokens leaves the memory's bandwidth unused."""

    name = "gaudi"
    package = "habana_frameworks.torch"
    install = "install the Gaudi software's own build of torch"
    capabilities = Capabilities(dtypes=("bfloat16", "float32"), index_dtype="int32", static_shapes=True)
    torch: Any = torch

    def placement(self, parallel: Any) -> Sequence[WorkerSpec]:
        """SynapseAI reads its ranks from the environment when it is imported."""
        return with_ranks(parallel)

    def open(self, index: int) -> Device:
        device = ModuleDevice.open(self.torch, "hpu", 0)
        device.eager = False
        return device

    def ops(self, reference: OpSet) -> OpSet:
        return replace(
            reference,
            rms_norm=RMSNorm(vendor_object(NORM)),
            rotary=Rotary(vendor_object(ROTATE), vendor_object(MODES)),
            experts=Experts(vendor_op(self.torch, EXPERTS, *EXPERTS_TAKES)),
            linear=fp8.Linear(
                vendor_op(self.torch, fp8.PRODUCT, *fp8.PRODUCT_TAKES), vendor_op(self.torch, fp8.CAST, *fp8.CAST_TAKES)
            ),
        )

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        return fp8.on_device(scheme, str(self.torch.hpu.get_device_name()))

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (FusedAttention(self.torch, self.block_sizes, vendor_object(ATTENTION)),)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        import_module("habana_frameworks.torch.distributed.hccl")
        return TorchCommunicator.join(self.torch, "hccl", rendezvous, spec.rank, spec.world_size)

    def graph_runner(self, device: Device) -> GraphRunner | Reason:
        if graph_class(self.torch, "hpu") is None:
            return f"torch {self.torch.__version__} has no graphs for hpu"
        is_lazy = vendor_object(IS_LAZY)
        if isinstance(is_lazy, str) or not is_lazy():
            return "HPU graphs need SynapseAI's lazy mode: start with PT_HPU_LAZY_MODE=1"
        return TorchGraphs(self.torch, device, lambda pool: HpuGraph(self.torch))
