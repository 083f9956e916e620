"""Silver: two steps in flight. The host prepares a step while the device computes the previous one. So launching a step
must not wait for the device, and host work of 0.6 of a step must not leave the device idle."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from tessera.config import EngineConfig, ParallelConfig
from tessera.errors import RefusedError
from tessera.ops.tensors import torch_dtype
from tessera.platform.feature import Feature, WorkerFeature
from tessera.platform.hooks import hookimpl
from tessera.platform.launch import Launch
from tessera.platform.platform import Platform
from tessera.plugins.registry import Registry
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.device import StepReads
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import TinyRun, prompts_of

STEPS = 100
HOST_WORK = 0.6  # of a step
LEAST_BUSY = 0.97
_SUBJECT = "steps in flight"


def overlap_cases(target: Target) -> Iterator[Case]:
    why = _why_not(target)
    if why is not None:
        yield Case("overlap", "silver", _SUBJECT, partial(absent, why))
        return
    yield Case("overlap/waits", "silver", _SUBJECT, partial(_waits, target))
    yield Case("overlap/busy", "silver", _SUBJECT, partial(_busy, target, 1))
    yield Case("overlap/workers", "silver", _SUBJECT, partial(_workers, target))


def _why_not(target: Target) -> str | None:
    if not target.platform.capabilities.async_dispatch:
        return "the device is not asynchronous"
    if target.brings_a_runner:
        return "the platform has its own model runner"
    if target.device.target.type == "cpu":
        return "its tensors are the host's, so nothing of a step is left to do when it has been launched"
    return None


def _waits(target: Target) -> Verdict:
    """Launching waits for nothing. A step's tokens are waited for after the next step has been launched."""
    with TinyRun(target, target.exact_dtype, positions=256, steps_in_flight=2) as run:
        reads = StepReads(run.runner.device)
        run.executor.observers.append(reads)
        run.ask(prompts_of((5, 70, 1, 33)), STEPS)
    if reads.read_lines:
        raise ConformanceError(
            f"in {STEPS} decode steps the host waited for the device {len(reads.read_lines)} times for something other "
            f"than the tokens of the previous step, first: {reads.read_lines[0]}"
        )
    return PASSED


def _workers(target: Target) -> Verdict:
    """The same with a process for each of two devices."""
    if target.devices < 2:
        return absent("it has one device; --devices N tries more")
    if len(target.platform.placement(ParallelConfig(tensor_parallel_size=2))) < 2:
        return absent("one worker drives all devices")
    own = type(target.platform).communicator is not Platform.communicator
    if not own and target.device.target.type not in dist.Backend.default_device_backend_map:
        return falls_back(
            "torch.distributed has no backend for the device, so collectives wait and go through the host"
        )
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # as many as the kit's own process has
    with patch.dict(os.environ, {"OMP_NUM_THREADS": threads}):
        try:
            return _busy(target, 2)
        except RefusedError as refused:
            return absent(refused.message)


def _busy(target: Target, workers: int) -> Verdict:
    with TinyRun(
        target, target.exact_dtype, positions=512, features=[_PACED], plugins=[__name__], workers=workers,
        steps_in_flight=2, check_kv_cache=False,
    ) as run:  # fmt: skip
        run.ask(prompts_of((8, 8)), _LAST + 8)
        paces = [msgspec.json.decode(path.read_bytes(), type=Pace) for path in run.folder.glob(f"*{_SUFFIX}")]
    assert len(paces) == workers, "each worker has launched all of these steps"
    slowest = min(paces, key=lambda pace: pace.busy)
    if slowest.busy < LEAST_BUSY:
        raise ConformanceError(
            f"with host work of {HOST_WORK} of a step, a step takes {slowest.worked * 1e3:.2f} ms instead of "
            f"{slowest.alone * 1e3:.2f} ms, so the device is busy {slowest.busy:.1%} of the time, expected at least "
            f"{LEAST_BUSY:.0%}: launching a step waits for the previous one"
        )
    return PASSED


# ---- in the process that launches


_SUFFIX = ".pace.json"
_ALONE = 30  # decode launches before those that are timed without host work
_WORKED = _ALONE + STEPS + 10
_LAST = _WORKED + STEPS
_BALLAST = 8.0  # device time of the ballast, in units of the host's time to launch a step
_LEAST_SECONDS = 5e-4  # of one product of the ballast; many short ones would fill the device's queue


class Pace(msgspec.Struct, frozen=True):
    """Seconds of a step: alone, and with host work."""

    alone: float
    worked: float

    @property
    def busy(self) -> float:
        """Share of the time in which the device computes, with host work."""
        return self.alone / self.worked


def _decodes(launch: Launch) -> bool:
    """Whether each row computes one token. The kind of its key does not tell: a shape policy may have only one kind."""
    return launch.num_tokens == launch.num_rows


_PACED = "conformance-paced"
PACED = Feature(worker=f"{__name__}:Paced")


@hookimpl
def extensions(registry: Registry) -> None:
    registry.features.add(_PACED, f"{__name__}:PACED", level=registry.features.level)


class Paced(WorkerFeature):
    """Times decode steps, first as they are and then with host work in each, and writes its Pace to the
    engine's folder. A tiny model computes faster than it can be launched, so matrix products (the ballast) are added to
    each step until it takes several times as long as its launch.

    The torch module of a simulated device may have a `host_clock`, used like the module `time` (monotonic, sleep):
    waiting moves it, launching does not."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        self.folder, self.dtype = Path(config.folder), torch_dtype(config.model.dtype)
        self.launches = 0
        self.clock: Any = time
        self.began = self.launched_from = self.launching = self.work = self.alone = 0.0
        self.ballast: list[Tensor] = []

    def before(self, launch: Launch) -> None:
        if not _decodes(launch):
            return
        number, device = self.launches, launch.rows.device
        self.launches += 1
        if number == 0:
            self.clock = getattr(torch.get_device_module(device), "host_clock", time)
        elif number == _ALONE - 10:
            self.ballast = self._ballast(device)
        elif number in (_ALONE, _WORKED):
            self.began = self._idle(device)
        elif number == _ALONE + STEPS:
            self.alone = (self._idle(device) - self.began) / STEPS
            self.work = HOST_WORK * self.alone
        elif number == _LAST:
            pace = Pace(self.alone, (self._idle(device) - self.began) / STEPS)
            self.folder.joinpath(f"{os.getpid()}{_SUFFIX}").write_bytes(msgspec.json.encode(pace))
            self.work = 0.0
        if self.work:
            self.clock.sleep(self.work)
        for matrix in self.ballast:
            torch.mm(matrix, matrix)
        self.launched_from = self.clock.monotonic()

    def after(self, launch: Launch, sampled: Tensor) -> None:
        if _decodes(launch):
            self.launching = self.clock.monotonic() - self.launched_from

    def _idle(self, device: torch.device) -> float:
        """Waits until the device has done all that was launched, and returns the time."""
        torch.accelerator.synchronize(device)
        return float(self.clock.monotonic())

    def _ballast(self, device: torch.device) -> list[Tensor]:
        """A matrix, as many times as its square must be computed in each step."""
        if self.clock is not time:
            return []
        size, seconds = 256, 0.0
        while seconds < _LEAST_SECONDS and size < 4096:
            size *= 2
            matrix = torch.zeros(size, size, dtype=self.dtype, device=device)
            torch.mm(matrix, matrix)
            began = self._idle(device)
            for _ in range(8):
                torch.mm(matrix, matrix)
            seconds = (self._idle(device) - began) / 8
        return [matrix] * math.ceil(_BALLAST * self.launching / seconds)
