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
    Default,
    Device,
    GraphRunner,
    ModelFacts,
    ModuleDevice,
    OpSet,
    Platform,
    PlatformError,
    Reason,
    Scheme,
    ShapePolicy,
    StepRules,
    TorchCommunicator,
    TorchGraphs,
    WorkerSpec,
    doubled,
    graph_class,
    replace,
    vendor_object,
    vendor_op,
    with_ranks,
)
from tessera_gaudi import fp8
from tessera_gaudi.attention import BLOCK, LEAST_BLOCK, FusedAttention
from tessera_gaudi.graphs import HpuGraph
from tessera_gaudi.ops import EXPERTS, EXPERTS_TAKES, MODES, NORM, ROTATE, Experts, RMSNorm, Rotary

if TYPE_CHECKING:
    from tessera.config import EngineConfig

PROMPT_TOKENS = doubled(128, 2048)
"""Tokens of launches with a prompt, which come one by one."""
FEWEST_BLOCKS = 4
"""Columns of the narrowest block table that launches are compiled for."""

ATTENTION = "habana_frameworks.torch.hpex.kernels:FusedSDPA"
IS_LAZY = "habana_frameworks.torch.utils.internal:is_lazy"
"""Whether SynapseAI collects ops into graphs, as it decided when it was imported."""


class GaudiPlatform(Platform):
    """One process has one accelerator, hpu:0, which SynapseAI chooses by the process's rank. torch: the library, so
    that tests can pass another."""

    name = "gaudi"
    capabilities = Capabilities(dtypes=("bfloat16", "float32"), index_dtype="int32", static_shapes=True)
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        try:
            import_module("habana_frameworks.torch")
        except ImportError as error:
            raise PlatformError(
                f"platform 'gaudi' needs habana_frameworks ({error}); install the Gaudi software's own build of torch."
            ) from error

    def placement(self, parallel: Any) -> Sequence[WorkerSpec]:
        """SynapseAI reads its ranks from the environment when it is imported."""
        return with_ranks(parallel)

    def open(self, index: int) -> Device:
        return ModuleDevice.open(self.torch, "hpu", 0)

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
        return (FusedAttention(self.torch, vendor_object(ATTENTION)),)

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

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return BucketedShapes.doubling(config, config.cache.block_size or LEAST_BLOCK, PROMPT_TOKENS, FEWEST_BLOCKS)

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        return {"cache.block_size": Default(BLOCK, "fewer columns of block tables, so fewer shapes to compile")}

    def step_rules(self, model: ModelFacts) -> StepRules:
        return BucketedShapes(decode_rows=(1,), prompt_tokens=PROMPT_TOKENS).rules()
