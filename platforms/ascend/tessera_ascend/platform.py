"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    AttentionBackend,
    BucketedShapes,
    Capabilities,
    Communicator,
    Device,
    DeviceGraph,
    GraphRunner,
    ModelFacts,
    ModuleDevice,
    OpSet,
    PiecewiseGraphs,
    Platform,
    Reason,
    ShapePolicy,
    TorchCommunicator,
    WorkerSpec,
    doubled,
    graph_class,
    import_vendor,
    replace,
    vendor_op,
)
from tessera_ascend import attention, linear, ops

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class AscendPlatform(Platform):
    """torch: the library, so that tests can pass another."""

    name = "ascend"
    capabilities = Capabilities(dtypes=("bfloat16", "float16", "float32"), index_dtype="int32")
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        import_vendor(
            self.torch,
            "torch_npu",
            self.name,
            "install CANN, source its set_env.sh, and install the torch_npu of torch {torch}",
        )

    def open(self, index: int) -> Device:
        return ModuleDevice.open(self.torch, "npu", index)

    def ops(self, reference: OpSet) -> OpSet:
        of, torch = vendor_op, self.torch
        return replace(
            reference,
            rms_norm=ops.RMSNorm(of(torch, ops.NORM, *ops.NORM_TAKES), of(torch, ops.GEMMA_NORM, *ops.NORM_TAKES)),
            add_norm=ops.AddNorm(of(torch, ops.ADD_NORM, *ops.ADD_NORM_TAKES)),
            rotary=ops.Rotary(of(torch, ops.ROTATE, *ops.ROTATE_TAKES)),
            gate=ops.Gate(of(torch, ops.GATE, *ops.GATE_TAKES)),
            experts=ops.Experts(
                of(torch, ops.PRODUCTS, *ops.PRODUCTS_TAKES),
                of(torch, ops.ROUTE_ROWS, *ops.ROUTE_ROWS_TAKES),
                of(torch, ops.ROWS_BACK, *ops.ROWS_BACK_TAKES),
            ),
            linear=linear.Linear(
                of(torch, linear.CAST, *linear.CAST_TAKES),
                of(torch, linear.QUANTIZE, *linear.QUANTIZE_TAKES),
                of(torch, linear.PRODUCT, *linear.PRODUCT_TAKES),
            ),
        )

    def attention_backends(self) -> Sequence[AttentionBackend]:
        attend = vendor_op(self.torch, attention.ATTENTION, *attention.ATTENTION_TAKES)
        write = vendor_op(self.torch, attention.WRITE, *attention.WRITE_TAKES)
        return (attention.FusedInferAttention(attend, write),)

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        return TorchCommunicator.join(self.torch, "hccl", rendezvous, spec.rank, spec.world_size)

    def graph_runner(self, device: Device) -> GraphRunner | Reason:
        """ACL graphs of what lies between attention, each of which takes one of the device's streams."""
        if graph_class(self.torch, "npu") is None:
            return f"torch_npu of torch {self.torch.__version__} has no graphs"
        return PiecewiseGraphs(self.torch, device, lambda pool: DeviceGraph(self.torch, "npu", pool=pool))

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        """Decode launches are padded, so that they can be captured; launches with prompts have their exact shape."""
        if graph_class(self.torch, "npu") is None:
            return None
        blocks = -(-config.model.max_model_len // (config.cache.block_size or min(attention.BLOCKS)))
        scheduler = config.scheduler
        return BucketedShapes(
            doubled(1, scheduler.max_num_seqs), blocks=(blocks,), max_decode_tokens=scheduler.max_decode_tokens
        )
