"""The device: what the manifest, the probe and an opened device say (bronze); and that no step reads its memory
implicitly (silver), which would stall an asynchronous device and be wrong in a captured step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import ITEMSIZE
from tessera.platform.device import Device
from tessera.platform.ops import Op
from tessera.platform.runner import ModelRunner
from tessera.step import SchedulerOutput
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.ops import dtype_of, placed
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import TinyRun, prompts_of
from tessera.testing.host_reads import HostReads
from tessera.testing.op_inputs import OpInputs


def device_cases(target: Target) -> Iterator[Case]:
    for name, check in (
        ("manifest", _manifest), ("capabilities", _capabilities), ("memory", _memory), ("peak", _peak),
        ("synchronize", _synchronize), ("to_host", _to_host), ("to_device", _to_device), ("arena", _arena),
    ):  # fmt: skip
        yield Case(f"device/{name}", "bronze", name, partial(check, target))


def _manifest(target: Target) -> Verdict:
    if target.selected is None:
        return absent("given by its dotted path, so there is no manifest to check")
    name, probe = target.selected.name, target.selected.probe
    _demand(
        target.platform.name == name, f"the manifest names the platform {name!r}, its class {target.platform.name!r}"
    )
    _demand(probe.reason.strip() != "", "the probe of the manifest gives no reason")
    _demand(probe.score <= 100, f"the probe of the manifest has score {probe.score}, the largest is 100")
    for device in probe.devices:
        _demand(
            device.memory == 0 or device.memory >= _TENSOR_BYTES,
            f"the probe of the manifest says that {device.name} has {device.memory} bytes; 0 is for what is not known",
        )
    return PASSED


def _capabilities(target: Target) -> Verdict:
    said = target.platform.capabilities
    _demand(bool(said.dtypes), "capabilities name no dtype, so no model can run")
    for dtype in said.dtypes:
        _demand(
            dtype in ITEMSIZE and torch_dtype(dtype).is_floating_point,
            f"capabilities name {dtype!r}, which is not a floating-point dtype",
        )
    _demand(
        said.index_dtype in ("int32", "int64"),
        f"index_dtype of the capabilities is {said.index_dtype!r}, expected int32 or int64",
    )
    return PASSED


_TENSOR_BYTES = 1 << 26
"""Every device has so many bytes, and no figure in MB is as large."""


def _memory(target: Target) -> Verdict:
    device = target.device
    figures = device.memory()
    _demand(figures.total > 0, f"memory: the device has {figures.total} bytes in total")
    _demand(0 <= figures.free <= figures.total, f"memory: {figures.free} bytes are free, of {figures.total} in total")
    held = torch.empty(_TENSOR_BYTES, dtype=torch.uint8, device=device.target)
    for what, nbytes in (("total", figures.total), ("free", figures.free)):
        _demand(
            nbytes >= held.nbytes,
            f"memory: {what} is {nbytes}, but the device has just held {held.nbytes} bytes; figures are in bytes",
        )
    if not figures.host and figures.free >= 3 * _TENSOR_BYTES:
        _memory_given_back(device)
    return PASSED


def _memory_given_back(device: Device) -> None:
    """What is held and given back must not make more free than there was. Other memory is held meanwhile, and more is
    held than ever before, since what an allocator keeps ready may be counted twice."""
    beside = torch.zeros(_TENSOR_BYTES, dtype=torch.uint8, device=device.target)
    before = device.memory().free
    held = torch.zeros(3 * _TENSOR_BYTES // 2, dtype=torch.uint8, device=device.target)
    device.synchronize()
    during = device.memory().free
    del held
    after = device.memory().free
    least = before + beside.nbytes // 4  # other processes may give some back meanwhile
    _demand(during <= least, f"memory: {before} bytes were free, and {during} are when more is held")
    _demand(after <= least, f"memory: {before} bytes were free, and {after} are after some were held and given back")


def _peak(target: Target) -> Verdict:
    """Of a run that holds two tensors at once, out of three."""
    device, ran = target.device, []

    def run() -> None:
        first = torch.empty(_TENSOR_BYTES // 2, dtype=torch.uint8, device=device.target)
        ran.append(first.nbytes + torch.empty(_TENSOR_BYTES // 4, dtype=torch.uint8, device=device.target).nbytes)
        del first
        torch.empty(_TENSOR_BYTES // 8, dtype=torch.uint8, device=device.target)

    found = device.peak(run)
    if found is None:
        _demand(not ran, "peak: the run was called, but no figure was given")
        return absent("the device does not measure its memory")
    _demand(bool(ran), "peak: the run was not called")
    most = _TENSOR_BYTES // 4 * 3
    _demand(
        most <= found < most + _TENSOR_BYTES // 4,
        f"peak: a run that holds {most} bytes at once is said to take {found}",
    )
    return PASSED


def _is_ahead(target: Target) -> bool:
    """Whether the host may be ahead of the device."""
    kind = str(target.device.target).partition(":")[0]  # torch's device, or its name
    return target.platform.capabilities.async_dispatch and kind != "cpu"


@dataclass
class _BusyDevice:
    """Products that take the device so long that it shows whether somebody waits for them."""

    target: Target

    def __post_init__(self) -> None:
        device = self.target.device
        self.clock: Any = getattr(torch.get_device_module(device.target), "host_clock", time)
        self.size, seconds = 256, 0.0
        while seconds < _LONG_WORK and self.size < _LARGEST_WORK:
            self.size *= 2
            began = self.clock.monotonic()
            device.to_host(self.launch()).result()
            seconds = self.clock.monotonic() - began
            if self.clock is not time:
                break

    def launch(self) -> torch.Tensor:
        """A small part of the result, all ones."""
        dtype = torch_dtype(self.target.platform.capabilities.dtypes[0])
        x = torch.full((self.size, self.size), 1 / self.size, dtype=dtype, device=self.target.device.target)
        for _ in range(_PRODUCTS):
            x = x @ x
        return (x[:1, :8] * self.size).float()


_PRODUCTS = 16
_LONG_WORK = 0.02  # seconds
_LARGEST_WORK = 8192


def _synchronize(target: Target) -> Verdict:
    """When synchronize() has returned, nothing is left to wait for."""
    if not _is_ahead(target):
        return absent("the host is never ahead of the device")
    if target.brings_a_runner:
        return absent("the platform has its own model runner")
    work = _BusyDevice(target)
    for _ in range(_TRIES):
        result = work.launch()
        began = work.clock.monotonic()
        target.device.synchronize()
        waited = work.clock.monotonic() - began
        target.device.to_host(result).result()
        left = work.clock.monotonic() - began - waited
        if left <= (waited + left) / 2:
            return PASSED
    raise ConformanceError(
        f"synchronize: it returned after {waited * 1e3:.2f} ms, and a result was there {left * 1e3:.2f} ms later: it "
        "does not wait for what was launched"
    )


_TRIES = 3  # on a machine that others use


def _to_host(target: Target) -> Verdict:
    """Read at once, behind work that takes long."""
    device = target.device
    numbers = torch.arange(37, dtype=torch.int32)
    found = device.to_host(numbers.to(device.target)).result()
    _demand(found.tolist() == numbers.tolist(), "to_host does not give what the device holds")
    if _is_ahead(target) and not target.brings_a_runner:
        early = device.to_host(_BusyDevice(target).launch()).result()
        _demand(bool((abs(early - 1) < _CLOSE).all()), "to_host: its result() does not wait for what it copies")
    return PASSED


_CLOSE = 0.05  # products of powers of two, in few bits


def _to_device(target: Target) -> Verdict:
    """Many copies from an array that is written to as soon as each has been started, into a new tensor and into one."""
    device = target.device
    numbers = np.zeros((64, 1024), np.int32)
    if target.brings_a_runner:
        return absent("the platform has its own model runner")
    into = torch.empty(64, 1024, dtype=torch.int32, device=device.target)
    found = []
    for number in range(24):
        numbers[:] = number
        placed = device.to_device(numbers, into if number % 2 else None)
        _demand(placed is into or not number % 2, "to_device does not return the tensor that it was given")
        found.append(device.to_host(placed.clone()))
    numbers[:] = -1
    wrong = [number for number, copy in enumerate(found) if not (copy.result() == number).all()]
    _demand(not wrong, f"to_device: copy {wrong[:1]} does not have what the array held when it was called")
    return PASSED


def _arena(target: Target) -> Verdict:
    device = target.device
    for tag in ("weights", "kv", "workspace"):
        with device.arena(tag) as arena:
            held = arena.hold(torch.zeros(1000, dtype=torch.uint8, device=device.target))
        _demand(held.shape == (1000,), f"the arena {tag!r} does not give back the tensor that it holds")
        _demand(arena.nbytes == 1000, f"the arena {tag!r} counts {arena.nbytes} bytes, expected 1000")
    return PASSED


def _demand(holds: Any, text: str) -> None:
    if not holds:
        raise ConformanceError(text)


# ---- implicit reads


_TOKENS = 5


def read_cases(target: Target) -> Iterator[Case]:
    """One for each op with a kernel, and one for whole steps."""
    if not target.platform.capabilities.async_dispatch:
        yield Case("reads", "silver", "implicit reads", lambda: absent("the device is not asynchronous"))
        return
    if target.brings_a_runner:
        yield Case("reads", "silver", "implicit reads", lambda: absent("the platform has its own model runner"))
        return
    for name in target.ops.names():
        op = target.ops[name]
        if op.kernel is not None and op.sample_specs is not None and op.inputs is not None:
            yield Case(f"reads/{name}", "silver", name, partial(_of_op, target, op))
    yield Case("reads/step", "silver", "implicit reads", partial(_of_steps, target))


class StepReads:
    """An observer of steps. Reads through device.to_host are allowed; read_lines: where each other read was made."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.read_lines: list[str] = []

    @contextmanager
    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> Iterator[None]:
        device = self.device
        with HostReads() as reads, patch.object(device, "to_host", reads.explicit(device.to_host)):
            yield
        self.read_lines += reads.lines


def _of_op(target: Target, op: Op[Any]) -> Verdict:
    """Calls the op at each sample spec that its kernel supports."""
    assert op.kernel is not None
    assert op.sample_specs is not None
    claimed, ops = target.platform.capabilities.dtypes, target.bound()
    tried = 0
    for spec in op.sample_specs():
        if (dtype_of(spec) or claimed[0]) not in claimed or op.kernel.supports(spec) is not None:
            continue
        call = ops.bind(op.name, spec)
        made = OpInputs(_TOKENS, ops=ops, dtype=target.exact_dtype).arguments(op, spec)
        arguments: Any = placed(made, target.device.target)
        with torch.inference_mode(), HostReads() as reads:
            call(*arguments)
        tried += 1
        if reads.lines:
            raise ConformanceError(f"{op.name} of {spec} reads device memory implicitly: {reads.lines[0]}")
    return PASSED if tried else falls_back("the kernel supports none of the op's sample specs")


def _of_steps(target: Target) -> Verdict:
    with TinyRun(target, target.exact_dtype, positions=256, steps_in_flight=2) as run:
        reads = StepReads(run.runner.device)
        run.executor.observers.append(reads)
        for temperature in (0.0, 1.0):
            run.ask(prompts_of((5, 70, 1, 33)), 6, temperature=temperature, top_p=0.9, top_k=5)
    if reads.read_lines:
        raise ConformanceError(
            f"steps read device memory implicitly {len(reads.read_lines)} times, first: {reads.read_lines[0]}"
        )
    return PASSED
