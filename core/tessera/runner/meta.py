"""A model runner over meta tensors: builds a model as for a start, without memory for weights or activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.config import EngineConfig
from tessera.config.engine import ModelConfig
from tessera.config.model_folder import is_gguf, names_in, served_weights
from tessera.errors import PlatformError
from tessera.layers.build import PIPELINE_GROUP
from tessera.loader.source import CheckpointWeights, open_checkpoint
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Alone
from tessera.platform.device import Device, Future, MemoryFigures
from tessera.platform.ops import BoundOps, Packed
from tessera.platform.platform import Platform, WorkerSpec
from tessera.platform.quantization import Part, WeightFormat
from tessera.platform.runner import ModelRunner
from tessera.runner.runner import core_runner
from tessera.runner.services import Services
from tessera.runner.worker import Report, check_one_device

_STORED_DTYPES = ("bfloat16", "float16", "float32")


def meta_runner(
    config: EngineConfig, platform: Platform, spec: WorkerSpec, device: Device, stage: int, report: Report
) -> ModelRunner:
    """Core's runner for the first worker of a pipeline stage. Only load() may be called. spec: of a worker. device: its
    first one, open, for its name and memory. Raises PlatformError for a platform with its own runner, or with several
    devices in a worker."""
    mesh = config.parallel.mesh
    services = Services(
        config,
        [MetaDevice(device)],
        mesh.groups(lambda axis: OneOf(stage if axis == PIPELINE_GROUP else 0, mesh.sizes[axis])),
        platform,
        source=shapes_of(config.model),
        bind=MetaOps,
    )
    if platform.runner(services) is not None:
        raise PlatformError(f"platform '{platform.name}' brings its own model runner, which cannot plan ahead.")
    check_one_device(platform, spec)
    return core_runner(services, platform, report)


class MetaDevice(Device):
    """Has the name and memory figures of a device, but allocates meta tensors."""

    def __init__(self, device: Device) -> None:
        self.device, self.name = device, device.name
        self.target = torch.device("meta")

    def memory(self) -> MemoryFigures:
        return self.device.memory()

    def synchronize(self) -> None:
        return None

    def to_host(self, tensor: Any) -> Future[Any]:
        raise AssertionError("meta tensors have no data")


class MetaOps(BoundOps):
    """Prepares weights as meta tensors of the size that their kernel states, as kernels can only prepare real ones."""

    def prepare(self, name: str, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        kernel = self.ops[name].kernel
        nbytes = None if kernel is None or kernel.supports(spec) is not None else kernel.packed_bytes(spec)
        return raw if nbytes is None else {"packed": torch.empty(nbytes, dtype=torch.uint8, device="meta")}


class Shapes:
    """A loader.checkpoint.WeightSource of meta tensors, which have a shape but no data. dtype: as stored. stored: the
    checkpoint, if it is there."""

    notes: Sequence[str] = ()
    decodes = False

    def __init__(self, dtype: str, stored: CheckpointWeights | None = None) -> None:
        self.dtype, self.stored = dtype, stored
        self.form: WeightFormat | None = None if stored is None else stored.form

    def read(self, part: Part) -> Tensor:
        return torch.empty(part.shape, dtype=torch_dtype(part.dtype or self.dtype), device="meta")

    def differ(self, names: Sequence[str], dtype: str) -> bool:
        return self.stored is not None and self.stored.differ(names, dtype)

    def holds(self, name: str) -> bool:
        return self.stored is None or self.stored.holds(name)

    def names(self) -> Iterable[str]:
        return () if self.stored is None else self.stored.names()

    def release(self) -> None:
        """Does nothing: there is nothing to release."""


class OneOf(Alone):
    """A communicator for one of `size` workers when the others do not exist."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def shapes_of(model: ModelConfig) -> Shapes:
    """Of the files, if they are there, else of config.json. Raises ModelError."""
    if is_gguf(path := Path(model.path)) or served_weights(names_in(path)):
        stored = open_checkpoint(model.path, tower=model.mmproj)
        return Shapes(stored.dtype, None if model.load_format == "dummy" else stored)
    return Shapes(said_dtype(model))


def said_dtype(model: ModelConfig) -> str:
    """The dtype of the weight matrices by config.json, else bfloat16."""
    nested = model.checkpoint.get("text_config")
    for said in (model.checkpoint, nested if isinstance(nested, Mapping) else {}):
        name = said.get("dtype", said.get("torch_dtype"))
        if name in _STORED_DTYPES:
            return str(name)
    return "bfloat16"
