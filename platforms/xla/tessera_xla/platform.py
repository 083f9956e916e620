"""The platforms: what core asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tessera.platform import (
    AttentionBackend,
    BucketedShapes,
    Capabilities,
    CompiledGraphs,
    Default,
    Device,
    GraphRunner,
    MaskedAttention,
    ModelFacts,
    Platform,
    PlatformError,
    Problem,
    ShapePolicy,
    StepRules,
    WorkerSpec,
    doubled,
)
from tessera_xla.device import TorchTpuDevice, TorchXlaDevice

if TYPE_CHECKING:
    from tessera.config import EngineConfig

BLOCK, LEAST_BLOCK = 128, 16
"""Tokens of a block, and the fewest that it may have."""
PROMPT_TOKENS = doubled(128, 2048)
"""Tokens of launches with a prompt, which come one by one."""
FEWEST_BLOCKS = 4
"""Columns of the narrowest block table that launches are compiled for."""


class SdpaAttention(MaskedAttention):
    """torch's scaled dot product, of which XLA makes its own kernels."""

    name = "sdpa"
    blocks = (BLOCK, LEAST_BLOCK)


class XlaPlatform(Platform):
    """What both have in common: launches of a few shapes alone, on one device. package: of Python. torch: the library,
    so that tests can pass another."""

    package: str
    capabilities = Capabilities(
        dtypes=("bfloat16", "float32"), index_dtype="int32", async_dispatch=False, static_shapes=True
    )  # copies wait
    torch: Any = torch

    def enter_process(self, spec: WorkerSpec) -> None:
        try:
            import_module(self.package)
        except (ImportError, OSError) as error:
            said = str(error).partition("\n")[0]
            raise PlatformError(
                f"platform '{self.name}' needs {self.package} ({said}); install the version for torch "
                f"{self.torch.__version__}."
            ) from error

    def attention_backends(self) -> Sequence[AttentionBackend]:
        return (SdpaAttention(self.torch),)

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy:
        return BucketedShapes.doubling(config, config.cache.block_size or LEAST_BLOCK, PROMPT_TOKENS, FEWEST_BLOCKS)

    def step_rules(self, model: ModelFacts) -> StepRules:
        return BucketedShapes(decode_rows=(1,), prompt_tokens=PROMPT_TOKENS).rules()

    def defaults(self, model: ModelFacts) -> Mapping[str, Default]:
        return {"cache.block_size": Default(BLOCK, "fewer columns of block tables, so fewer shapes to compile")}

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
