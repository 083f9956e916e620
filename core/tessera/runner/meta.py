"""A model's runner without a model: everything is built and solved as for a start, over tensors that hold nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.config.engine import ModelConfig
from tessera.config.model_folder import names_in, served_weights
from tessera.errors import PlatformError
from tessera.layers.build import PIPELINE_GROUP, TENSOR_GROUP
from tessera.layers.weights import Part
from tessera.loader.checkpoint import Safetensors
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Alone
from tessera.platform.device import Device, Future, MemoryFigures
from tessera.platform.ops import BoundOps, Packed
from tessera.platform.platform import Platform
from tessera.platform.runner import ModelRunner
from tessera.runner.services import Services
from tessera.runner.stages import core_runner
from tessera.runner.worker import Report

_STORED_DTYPES = ("bfloat16", "float16", "float32")


def meta_runner(config: EngineConfig, platform: Platform, device: Device, stage: int, report: Report) -> ModelRunner:
    """Core's runner for the first worker of a pipeline stage, to call load() on and nothing else. device: opened, for
    its figures. Raises PlatformError for a platform that runs models its own way."""
    parallel = config.parallel
    services = Services(
        config,
        MetaDevice(device),
        {
            TENSOR_GROUP: OneOf(0, parallel.tensor_parallel_size),
            PIPELINE_GROUP: OneOf(stage, parallel.pipeline_parallel_size),
        },
        platform.capabilities,
        source=Shapes(stored_dtype(config.model)),
        bind=MetaOps,
    )
    if platform.runner(services) is not None:
        raise PlatformError(f"platform '{platform.name}' brings its own model runner, which cannot tell beforehand.")
    return core_runner(services, platform, report)


class MetaDevice(Device):
    """The name and the memory of a device, and tensors that take none of it."""

    def __init__(self, device: Device) -> None:
        self.device, self.name = device, device.name
        self.target = torch.device("meta")

    def memory(self) -> MemoryFigures:
        return self.device.memory()

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Any) -> Future[Any]:
        raise AssertionError("nothing lies on this device")


class MetaOps(BoundOps):
    """Prepared weights by what their kernels say of their size, since kernels prepare real ones only."""

    def prepare(self, name: str, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        kernel = self.ops[name].kernel
        nbytes = None if kernel is None or kernel.supports(spec) is not None else kernel.packed_bytes(spec)
        return raw if nbytes is None else {"packed": torch.empty(nbytes, dtype=torch.uint8, device="meta")}


class Shapes:
    """A source of weights (loader.checkpoint.WeightSource) that knows their shapes alone. dtype: as stored."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def read(self, part: Part) -> Tensor:
        return torch.empty(part.shape, dtype=torch_dtype(self.dtype), device="meta")

    def release(self) -> None:
        """Holds nothing."""


class OneOf(Alone):
    """One of some workers, the others of which are not there."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def stored_dtype(model: ModelConfig) -> str:
    """Of the weights' matrices: what the files say, else config.json, else what most models are stored in."""
    if served_weights(names_in(Path(model.path))):
        return Safetensors(model.path).dtype
    nested = model.checkpoint.get("text_config")
    for said in (model.checkpoint, nested if isinstance(nested, Mapping) else {}):
        name = said.get("dtype", said.get("torch_dtype"))
        if name in _STORED_DTYPES:
            return str(name)
    return "bfloat16"
