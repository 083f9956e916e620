"""The platforms: what core asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    Capabilities,
    CompiledGraphs,
    CompiledPlatform,
    Device,
    GraphRunner,
    ModelFacts,
    PlatformError,
    Problem,
    WorkerSpec,
)
from tessera_xla.device import TorchTpuDevice, TorchXlaDevice

if TYPE_CHECKING:
    from tessera.config import EngineConfig


class XlaPlatform(CompiledPlatform):
    """What both have in common, on one device."""

    install = "install the version for torch {torch}"
    capabilities = Capabilities(
        dtypes=("bfloat16", "float32"), index_dtype="int32", async_dispatch=False, static_shapes=True
    )  # copies wait
    torch: Any = torch

    def check(self, config: EngineConfig, model: ModelFacts) -> Sequence[Problem]:
        parallel = config.parallel
        if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
            return [Problem(f"platform '{self.name}' uses one device; platform 'tpu' (tessera-tpu) uses several")]
        return ()


class TorchTpuPlatform(XlaPlatform):
    """torch-tpu's device `tpu` and its compiler."""

    name = "torch-tpu"
    package = "torch_tpu"

    def enter_process(self, spec: WorkerSpec) -> None:
        super().enter_process(spec)
        if not hasattr(self.torch, "tpu"):
            raise PlatformError(
                "torch_tpu is installed, but registered no device: it finds no TPU, or TORCH_DEVICE_BACKEND_AUTOLOAD "
                "is set to 0; unset it."
            )

    def open(self, index: int) -> Device:
        self.torch.accelerator.set_device_index(index)
        return TorchTpuDevice(self.torch, index)

    def graph_runner(self, device: Device) -> GraphRunner:
        return CompiledGraphs(self.torch, device, "tpu")


class TorchXlaPlatform(XlaPlatform):
    """torch_xla's device `xla`, of what PJRT_DEVICE names: TPU or CPU."""

    name = "torch-xla"
    package = "torch_xla"

    def enter_process(self, spec: WorkerSpec) -> None:
        """In inference mode, in which core computes, torch_xla makes no views of tensors from outside of it. So all of
        the process's tensors are from inside, the weights too."""
        super().enter_process(spec)
        self.inference = self.torch.inference_mode()
        self.inference.__enter__()

    def open(self, index: int) -> Device:
        import_module("torch_xla.core.xla_model")
        return TorchXlaDevice(self.torch, import_module("torch_xla"), index)
