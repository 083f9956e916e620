"""Silver: all of the platform's devices, each with a worker in a process as core starts it: their collectives, and on
each device its memory figures and every op."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.config import ParallelConfig
from tessera.executor.workers import LOOPBACK
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.platform.platform import WorkerSpec
from tessera.runner.collectives import join
from tessera.testing.compare import difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, described, named
from tessera.testing.conformance.ops import OpTrial, dtype_of
from tessera.testing.conformance.target import Target

_SECONDS = 60.0
_TIMED_OUT = f"timed out after {_SECONDS:g} s"
_SUBJECT = "collectives"


def collective_cases(target: Target) -> Iterator[Case]:
    """One a collective and dtype, one for the memory and for each op; all run in the processes that the first one
    starts."""
    if target.devices < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("it has one device; --devices N tries more"))
        return
    specs = target.platform.placement(ParallelConfig(tensor_parallel_size=target.devices))
    if len(specs) < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("one worker drives all devices"))
        return
    ranks = Ranks(target, specs)
    for check in checks_of(target):
        yield Case(check.id, "silver", check.subject, partial(_verdict, ranks, check.id))


@dataclass(frozen=True)
class _Found:
    text: str
    tensors: Mapping[str, Tensor]


@dataclass
class Ranks:
    """All workers of the target, which check their collectives once."""

    target: Target
    specs: Sequence[WorkerSpec]

    @cached_property
    def found(self) -> Mapping[str, _Found]:
        """By check, what any rank says of it. Where a check ended the processes, new ones go on with the next check;
        where they do not even reach the first, or time out again, the rest counts as failed too."""
        found: dict[str, _Found] = {}
        waiting, timeouts = [check.id for check in checks_of(self.target)], 0
        while waiting:
            with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as folder:
                outputs = [Path(folder, f"answers-{spec.rank}") for spec in self.specs]
                problem = self._run(Path(folder), outputs, waiting)
                said = [
                    [msgspec.json.decode(line, type=Said) for line in path.read_bytes().splitlines()]
                    for path in outputs
                ]
                done = min(sum(not answer.ended for answer in rank) for rank in said)
                timeouts += problem == _TIMED_OUT
                hopeless = not any(said) or timeouts > 1
                tried = waiting if hopeless else waiting[: done + 1]
                found |= self._merged(Path(folder), said, problem, tried)
                waiting = waiting[len(tried) :]
        return found

    def _run(self, folder: Path, outputs: Sequence[Path], checks: list[str]) -> str:
        """Why the processes came to no end, or ""."""
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for spec, output in zip(self.specs, outputs, strict=True):
                processes.append(self._started(spec, folder, output, checks))
            return _awaited(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _started(self, spec: WorkerSpec, folder: Path, output: Path, checks: list[str]) -> subprocess.Popen[bytes]:
        start = Start(self.target.path, spec, (folder / "rendezvous").as_uri(), str(folder), checks)
        with output.open("wb") as answers:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import run_rank; run_rank()"],
                stdin=subprocess.PIPE,
                stdout=answers,
                env={"OMP_NUM_THREADS": "1", **os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK, **spec.environment},
            )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(msgspec.json.encode(start))
        return process

    def _merged(
        self, folder: Path, said: Sequence[Sequence[Said]], problem: str, checks: list[str]
    ) -> Mapping[str, _Found]:
        """A check that not every rank has passed is wrong."""
        found = {}
        for name in checks:
            answers = [answer for rank in said for answer in rank if answer.check == name]
            texts = [answer.text for answer in answers if answer.text]
            if not texts and len(answers) < len(self.specs):
                texts = [f"{name}: not every rank finished ({problem})"]
            if texts:
                files = sorted(folder.glob(f"{_file(name)}-*.safetensors"))
                found[name] = _Found(texts[0], load_file(files[0]) if files else {})
        return found


def _awaited(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Until all have ended, or one has failed."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            return f"rank {failed} ended with exit code {codes[failed]}"
        if all(code == 0 for code in codes):
            return ""
        time.sleep(0.02)
    return _TIMED_OUT


def _verdict(ranks: Ranks, name: str) -> Verdict:
    found = ranks.found.get(name)
    if found is not None:
        raise ConformanceError(found.text, found.tensors)
    return PASSED


# ---- what the ranks are told, and what they say


class Start(msgspec.Struct):
    """folder: where tensors of what fails are left, by rank. checks: ids of those to run."""

    platform: str
    spec: WorkerSpec
    rendezvous: str
    folder: str
    checks: list[str]


class Said(msgspec.Struct):
    """text: what is wrong; "" where nothing is. ended: by an error, after which the group is of no more use."""

    check: str
    text: str = ""
    ended: bool = False


@dataclass(frozen=True)
class Check:
    """id, subject: of its case. run: in each rank; raises ConformanceError."""

    id: str
    subject: str
    run: Callable[[Member], None]


def checks_of(target: Target) -> Iterator[Check]:
    """In the order they run."""
    dtypes = target.platform.capabilities.dtypes
    for name, check in IN_EACH_DTYPE.items():
        for dtype in dtypes:
            yield Check(f"collectives/{name}-{dtype}", name, partial(_in_dtype, check, dtype))
    for name, check in ONCE.items():
        yield Check(f"collectives/{name}", name, partial(_in_dtype, check, dtypes[0]))
    yield Check("devices/memory", "memory", memory)
    for name in [] if target.brings_a_runner else target.ops.names():
        if target.ops[name].kernel is not None:
            yield Check(f"devices/{name}", name, partial(_op, name))


@dataclass(frozen=True)
class Member:
    """One rank: its target, whose device is its own, the communicator of all, and the folder that they share."""

    target: Target
    communicator: Communicator
    folder: Path


def _in_dtype(check: Callable[[Group], None], dtype: str, member: Member) -> None:
    check(Group(member.communicator, member.target.device, dtype))


# ---- one rank


def run_rank() -> None:
    """One rank of the group, in a process of its own: a Start on standard input, a Said for each check on standard
    output. What a platform prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    with answers:
        _run_rank(start, answers)


def _run_rank(start: Start, answers: TextIO) -> None:
    target = Target(start.platform, worker=start.spec)
    communicator = join(target.platform, start.spec, start.rendezvous, target.device)
    member = Member(target, communicator, Path(start.folder))
    checks = {check.id: check for check in checks_of(target)}
    for name in start.checks:
        said = _checked(checks[name], member)
        answers.write(f"{msgspec.json.encode(said).decode()}\n")
        answers.flush()
        if said.ended:
            os._exit(1)  # the others may wait for this one for ever; whoever started them ends them
    communicator.close()


def _checked(check: Check, member: Member) -> Said:
    rank = member.communicator.rank
    try:
        check.run(member)
    except ConformanceError as error:
        if error.tensors:
            save_file(dict(error.tensors), member.folder / f"{_file(check.id)}-{rank}.safetensors")
        return Said(check.id, error.text)
    except Exception as error:  # noqa: BLE001  # as Case.result
        return Said(check.id, f"{check.id}, rank {rank}: {described(error)}", ended=True)
    return Said(check.id)


def _file(check: str) -> str:
    return check.replace("/", ".")


# ---- what a group must do, as each rank checks it: it knows what every other one brings


_SHAPES = ((7, 13), (1, 1), (0, 5), (3, 0), (130, 3))


@dataclass(frozen=True)
class Group:
    """A communicator, this rank's device, the dtype of what is sent."""

    communicator: Communicator
    device: Device
    dtype: str

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def size(self) -> int:
        return self.communicator.size

    def brought(self, rank: int, shape: tuple[int, ...]) -> Tensor:
        """What a rank brings, on the host: whole numbers, whose sums are exact in every dtype."""
        random = torch.Generator().manual_seed(97 * rank + len(shape) + sum(shape))
        return torch.randint(-8, 9, shape, generator=random).to(torch_dtype(self.dtype))

    def laid(self, rank: int, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
        """The same on the device: dense, rows with a stride, and columns before rows."""
        whole = self.brought(rank, shape)
        yield "", whole.clone().to(self.device.target)
        wide = torch.zeros(shape[0], shape[1] + 3, dtype=whole.dtype)
        wide[:, : shape[1]] = whole
        yield " with a row stride", wide.to(self.device.target)[:, : shape[1]]
        yield " transposed", whole.T.clone(memory_format=torch.contiguous_format).to(self.device.target).T

    def compare(self, what: str, found: Tensor, expected: Tensor) -> None:
        self.device.synchronize()
        here = found.cpu()
        text = difference(here, expected, 0.0)
        if text is not None:
            said = f"{what}, {self.dtype}, rank {self.rank} of {self.size}: {text}"
            raise ConformanceError(said, named(result=here, expected=expected))


def all_reduce(group: Group) -> None:
    for shape in _SHAPES:
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        total = torch.stack(parts).sum(0).to(parts[0].dtype)
        for how, mine in group.laid(group.rank, shape):
            found = group.communicator.all_reduce(mine)
            average = total / group.size
            if total.any() and torch.equal(found.cpu(), average.to(total.dtype)):
                raise ConformanceError(
                    f"all_reduce of {list(shape)}{how}, {group.dtype}: the average of the ranks, expected the sum",
                    named(result=found, expected=total),
                )
            group.compare(f"all_reduce of {list(shape)}{how}", found, total)
            group.communicator.all_reduce(torch.ones_like(mine))
            group.compare(f"all_reduce of {list(shape)}{how}, after the next call,", found, total)


def all_gather(group: Group) -> None:
    for shape in _SHAPES:
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        for how, mine in group.laid(group.rank, shape):
            for dim in (0, 1, -1):
                what = f"all_gather along {dim} of {list(shape)}{how}"
                found = group.communicator.all_gather(mine, dim)
                group.compare(what, found, torch.cat(parts, dim))
                group.communicator.all_gather(torch.ones_like(mine), dim)
                group.compare(f"{what}, after the next call,", found, torch.cat(parts, dim))
                group.compare(f"the input of {what}", mine, parts[group.rank])


def broadcast(group: Group) -> None:
    for shape in _SHAPES:
        for source in range(group.size):
            for how, mine in group.laid(group.rank, shape):
                what = f"broadcast from {source} of {list(shape)}{how}"
                expected = group.brought(source, shape)
                group.compare(what, group.communicator.broadcast(mine, source), expected)
                group.compare(f"{what}, which is in place,", mine, expected)


def new_group(group: Group) -> None:
    made = group.communicator.new_group(range(group.size), "conformance", {})
    if (made.rank, made.size) != (group.rank, group.size):
        raise ConformanceError(f"new_group: rank {made.rank} of {made.size}, expected {group.rank} of {group.size}")
    all_reduce(Group(made, group.device, group.dtype))


def agree(group: Group) -> None:
    large = 2**40
    values = group.communicator.agree([group.rank, -group.rank, large + group.rank, 5])
    expected = [group.size - 1, 0, large + group.size - 1, 5]
    if list(values) != expected:
        raise ConformanceError(f"agree: it gives {list(values)}, expected the largest of each, {expected}")


IN_EACH_DTYPE: Mapping[str, Callable[[Group], None]] = MappingProxyType(
    {"all_reduce": all_reduce, "all_gather": all_gather, "broadcast": broadcast}
)
ONCE: Mapping[str, Callable[[Group], None]] = MappingProxyType({"new_group": new_group, "agree": agree})


# ---- each device by itself


_HELD = 1 << 26  # bytes
_TOKENS = 19


def memory(member: Member) -> None:
    """One rank after the other, so that no other device's memory changes meanwhile."""
    rank, deadline = member.communicator.rank, time.monotonic() + _SECONDS
    while rank and not (member.folder / f"turn-{rank - 1}").exists():
        if time.monotonic() > deadline:
            raise ConformanceError(f"memory: rank {rank - 1} did not finish")
        time.sleep(0.005)
    try:
        _check_figures(member.target.device, rank)
    finally:
        (member.folder / f"turn-{rank}").touch()


def _check_figures(device: Device, rank: int) -> None:
    before = device.memory()
    if before.host or before.free < 2 * _HELD:
        return
    held = torch.zeros(_HELD, dtype=torch.uint8, device=device.target)
    device.synchronize()
    taken = before.free - device.memory().free
    if taken < _HELD // 2:
        raise ConformanceError(
            f"memory: rank {rank} took {held.nbytes} bytes of {device.target}, and of what is free {taken} bytes less "
            "are left; the figures have to be those of the rank's own device"
        )


def _op(name: str, member: Member) -> None:
    """At the first of its sample specs in each dtype that its kernel supports."""
    target = member.target
    op, tried = target.ops[name], set[str | None]()
    assert op.kernel is not None
    for spec in op.sample_specs() if op.sample_specs is not None and op.inputs is not None else ():
        dtype = dtype_of(spec)
        if dtype in tried or dtype not in (None, *target.platform.capabilities.dtypes):
            continue
        if op.kernel.supports(spec) is None:
            OpTrial(target, op, spec, dtype or target.exact_dtype, _TOKENS, native=True).check()
            tried.add(dtype)
