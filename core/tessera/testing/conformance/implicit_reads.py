"""Silver: nothing in a step reads the device behind its back: it would stall an asynchronous device, and be wrong in a
captured step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from tessera.platform.device import Device
from tessera.platform.ops import Op
from tessera.platform.runner import ModelRunner
from tessera.step import SchedulerOutput
from tessera.testing.conformance.arguments import placed
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, falls_back
from tessera.testing.conformance.ops import dtype_of
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny_run import TinyRun, prompts_of
from tessera.testing.host_reads import HostReads
from tessera.testing.op_inputs import OpInputs

_TOKENS = 5


def read_cases(target: Target) -> Iterator[Case]:
    """One for each op with a kernel, and one for whole steps."""
    if not target.platform.capabilities.async_dispatch:
        yield Case("reads", "silver", "implicit reads", lambda: absent("its device is not asynchronous"))
        return
    if target.brings_a_runner:
        yield Case("reads", "silver", "implicit reads", lambda: absent("it brings a runner of its own"))
        return
    for name in target.ops.names():
        op = target.ops[name]
        if op.kernel is not None and op.sample_specs is not None:
            yield Case(f"reads/{name}", "silver", name, partial(_of_op, target, op))
    yield Case("reads/step", "silver", "implicit reads", partial(_of_steps, target))


class StepReads:
    """An observer of steps. device: whose to_host is how to read. found: where each read was made."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.found: list[str] = []

    @contextmanager
    def around(self, runner: ModelRunner, step: SchedulerOutput | None) -> Iterator[None]:
        device = self.device
        with HostReads() as reads, patch.object(device, "to_host", reads.explicit(device.to_host)):
            yield
        self.found += reads.found


def _of_op(target: Target, op: Op[Any]) -> Verdict:
    """At each place that its kernel supports."""
    assert op.kernel is not None
    assert op.sample_specs is not None
    claimed, ops = target.platform.capabilities.dtypes, target.bound()
    tried = 0
    for spec in op.sample_specs():
        if (dtype_of(spec) or claimed[0]) not in claimed or op.kernel.supports(spec) is not None:
            continue
        call = ops.bind(op.name, spec)
        made = OpInputs(_TOKENS, ops=ops, dtype=target.exact_dtype).of(op.name, spec)
        arguments: Any = placed(made, target.device.target)
        with torch.inference_mode(), HostReads() as reads:
            call(*arguments)
        tried += 1
        if reads.found:
            raise ConformanceError(f"{op.name} of {spec} reads the device: {reads.found[0]}")
    return PASSED if tried else falls_back("its kernel supports none of the sample specs")


def _of_steps(target: Target) -> Verdict:
    with TinyRun(target, target.exact_dtype, positions=256, steps_in_flight=2) as run:
        reads = StepReads(run.runner.device)
        run.executor.observers.append(reads)
        for temperature in (0.0, 1.0):
            run.ask(prompts_of((5, 70, 1, 33)), 6, temperature=temperature, top_p=0.9, top_k=5)
    if reads.found:
        raise ConformanceError(f"a step reads the device {len(reads.found)} times, first: {reads.found[0]}")
    return PASSED
