"""The platforms for GPUs over fakechip: their own logic, and the library's kernels by Triton's interpreter, on a device
that queues, counts and captures. `tests.platforms.fake_gpu:Cuda`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

import tests.platforms.interpreted  # noqa: F401 - before any kernel
from tessera.config import EngineConfig
from tessera.platform import (
    Communicator,
    Device,
    FullAndPiecewiseGraphs,
    GraphRunner,
    ModelFacts,
    ShapePolicy,
    TorchDevice,
    WorkerSpec,
)
from tessera_cuda.platform import CudaPlatform
from tessera_rocm.platform import RocmPlatform
from tessera_triton import TARGETS, DeviceFacts, Launcher
from tessera_triton.attention import Trial, tried_here
from tessera_triton.facts import INTERPRETED
from tessera_triton.graphs import shapes
from tessera_triton.platform import SMALLEST_BLOCK, TritonPlatform
from tessera_xpu.platform import XpuPlatform

FEW_SIZES, TINY = 2, 1024
"""Of launches with prompts that are captured of tiny models, whose hidden states have fewer elements than this."""

_library = torch.library.Library("kernels", "DEF")
_ops: dict[str, Any] = {}
_launches: list[tuple[Any, tuple[int, ...], list[Any], dict[str, Any]]] = []


class OnChip(Launcher):
    """Launches each kernel as an op of the chip named after it, so that the chip queues, counts and records it as it
    does torch's own."""

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        places = iter(range(len(tensors)))
        given = [_Place(next(places)) if isinstance(one, torch.Tensor) else one for one in arguments]
        _launches.append((kernel, grid, given, options))
        _op(kernel.fn.__name__)(len(_launches) - 1, tensors)


class _Place(int):
    """Which of a launch's tensors an argument is."""


def _op(name: str) -> Any:
    if name not in _ops:
        _library.define(f"{name}(int launch, Tensor(a!)[] tensors) -> ()")
        _library.impl(name, _run, "CPU")
        _ops[name] = getattr(torch.ops.kernels, name)
    return _ops[name]


def _run(number: int, tensors: list[torch.Tensor]) -> None:
    kernel, grid, given, options = _launches[number]
    kernel[grid](*(tensors[one] if isinstance(one, _Place) else one for one in given), **options)


class OverFakechip(TritonPlatform):
    """What a platform asks of its runtime, asked of fakechip's. target: the device whose kernels it has."""

    kind = "fakechip"
    target: str

    def enter_process(self, spec: WorkerSpec) -> None:
        import_module("torch_fakechip")

    def open(self, index: int) -> Device:
        return TorchDevice(torch, self.kind, index)

    def _facts(self) -> DeviceFacts:
        """With few processors, since the interpreter runs programs one after another."""
        return replace(TARGETS[self.target], processors=INTERPRETED.processors)

    def _compiled_facts(self) -> DeviceFacts:
        return self._facts()

    def _new_launcher(self) -> Launcher:
        return OnChip()

    def _trial(self) -> Trial:
        return tried_here

    def compilations(self) -> int | None:
        """The interpreter compiles nothing."""
        return None

    def communicator(self, spec: WorkerSpec, device: Device, rendezvous: str) -> Communicator | None:
        joined: Communicator | None = import_module("tessera_fakechip.collectives").join(spec, rendezvous)
        return joined

    def graph_runner(self, device: Device) -> GraphRunner:
        return FullAndPiecewiseGraphs(torch, device, lambda pool: import_module("torch_fakechip").Graph())

    def shapes(self, model: ModelFacts, config: EngineConfig) -> ShapePolicy | None:
        policy = shapes(model, config, SMALLEST_BLOCK)
        # The interpreter, which tiny models alone are run by, takes minutes for launches of hundreds of tokens.
        few = policy.mixed_tokens[: FEW_SIZES if model.hidden_size < TINY else None]
        return replace(policy, mixed_tokens=few)


class Cuda(OverFakechip, CudaPlatform):
    target = "sm_90"


class Rocm(OverFakechip, RocmPlatform):
    target = "gfx942"


class RocmOfNarrowWaves(OverFakechip, RocmPlatform):
    target = "gfx1100"


class Xpu(OverFakechip, XpuPlatform):
    """As the platform would say it of a card."""

    def _facts(self) -> DeviceFacts:
        return DeviceFacts("xpu", "Intel(R) Arc(TM) B580 Graphics", 32, 128 << 10, INTERPRETED.processors)
