"""Silver: collectives over all of the platform's devices, each worker a process as core starts it."""

from __future__ import annotations

import hashlib
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
from tessera.errors import PlatformError
from tessera.executor.workers import LOOPBACK
from tessera.ops.tensors import torch_dtype
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.platform.platform import WorkerSpec
from tessera.plugins import load_platform
from tessera.runner.collectives import join
from tessera.testing.compare import difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, described, named
from tessera.testing.conformance.target import Target

_SECONDS = 60.0
_SUBJECT = "collectives"


def collective_cases(target: Target) -> Iterator[Case]:
    """One a collective and dtype; all of them run in the processes that the first one starts."""
    if target.devices < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("it has one device; --devices N tries more"))
        return
    specs = target.platform.placement(ParallelConfig(tensor_parallel_size=target.devices))
    if len(specs) < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("one worker drives all devices"))
        return
    ranks = Ranks(target, specs)
    for name, check, _ in checks_of(list(target.platform.capabilities.dtypes)):
        yield Case(f"collectives/{name}", "silver", check, partial(_verdict, ranks, name))


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
        """By check, what any rank says of it."""
        with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as folder:
            outputs = [Path(folder, f"answers-{spec.rank}") for spec in self.specs]
            problem = self._run(Path(folder), outputs)
            said = [
                [msgspec.json.decode(line, type=Said) for line in path.read_bytes().splitlines()] for path in outputs
            ]
            return self._merged(Path(folder), said, problem)

    def _run(self, folder: Path, outputs: Sequence[Path]) -> str:
        """Why the processes came to no end, or ""."""
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for spec, output in zip(self.specs, outputs, strict=True):
                processes.append(self._started(spec, folder, output))
            return _awaited(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _started(self, spec: WorkerSpec, folder: Path, output: Path) -> subprocess.Popen[bytes]:
        dtypes = list(self.target.platform.capabilities.dtypes)
        start = Start(self.target.path, spec, (folder / "rendezvous").as_uri(), str(folder), dtypes)
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

    def _merged(self, folder: Path, said: Sequence[Sequence[Said]], problem: str) -> Mapping[str, _Found]:
        """A check that not every rank has passed is wrong."""
        found = {}
        for name, _, _ in checks_of(list(self.target.platform.capabilities.dtypes)):
            answers = [answer for rank in said for answer in rank if answer.check == name]
            texts = [answer.text for answer in answers if answer.text]
            if not texts and len(answers) < len(self.specs):
                texts = [f"{name}: not every rank finished ({problem or 'an earlier check failed'})"]
            if texts:
                files = sorted(folder.glob(f"{name}-*.safetensors"))
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
    return f"timed out after {_SECONDS:g} s"


def _verdict(ranks: Ranks, name: str) -> Verdict:
    found = ranks.found.get(name)
    if found is not None:
        raise ConformanceError(found.text, found.tensors)
    return PASSED


# ---- what the ranks are told, and what they say


class Start(msgspec.Struct):
    """folder: where tensors of what fails are left, by rank."""

    platform: str
    spec: WorkerSpec
    rendezvous: str
    folder: str
    dtypes: list[str]


class Said(msgspec.Struct):
    """text: what is wrong; "" where nothing is. ended: by an error, after which the group is of no more use."""

    check: str
    text: str = ""
    ended: bool = False


def checks_of(dtypes: list[str]) -> list[tuple[str, str, str]]:
    """Id, check and dtype of each, in the order they run."""
    typed = [(f"{name}-{dtype}", name, dtype) for name in IN_EACH_DTYPE for dtype in dtypes]
    return typed + [(name, name, dtypes[0]) for name in ONCE]


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
    platform = load_platform(start.platform)
    platform.enter_process(start.spec)
    device = platform.open(start.spec.devices[0])
    communicator = join(platform, start.spec, start.rendezvous, device)
    for name, check, dtype in checks_of(start.dtypes):
        said = _checked(start, name, {**IN_EACH_DTYPE, **ONCE}[check], Group(communicator, device, dtype))
        answers.write(f"{msgspec.json.encode(said).decode()}\n")
        answers.flush()
        if said.ended:
            os._exit(1)  # the others may wait for this one for ever; whoever started them ends them
    communicator.close()


def _checked(start: Start, name: str, check: Callable[[Group], None], group: Group) -> Said:
    try:
        check(group)
    except ConformanceError as error:
        if error.tensors:
            save_file(dict(error.tensors), f"{start.folder}/{name}-{group.rank}.safetensors")
        return Said(name, error.text)
    except Exception as error:  # noqa: BLE001  # as Case.result
        return Said(name, f"{name}, rank {group.rank}: {described(error)}", ended=True)
    return Said(name)


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
    _same_bits(group)


def _same_bits(group: Group) -> None:
    """Of a sum that is rounded."""
    random = torch.Generator().manual_seed(group.rank)
    mine = torch.randn(64, 96, generator=random).to(torch_dtype(group.dtype)).to(group.device.target)
    found = group.communicator.all_reduce(mine)
    group.device.synchronize()
    bits = found.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    digest = int.from_bytes(hashlib.sha256(bits).digest()[:7])
    most, least = group.communicator.agree([digest, -digest])
    if most != -least:
        raise ConformanceError(
            f"all_reduce, {group.dtype}: the ranks do not have the same bits, so they may draw different tokens"
        )


def all_gather(group: Group) -> None:
    for shape in _SHAPES:
        parts = [group.brought(rank, shape) for rank in range(group.size)]
        for how, mine in group.laid(group.rank, shape):
            for dim in (0, 1, -1):
                what = f"all_gather along {dim} of {list(shape)}{how}"
                group.compare(what, group.communicator.all_gather(mine, dim), torch.cat(parts, dim))
                group.compare(f"the input of {what}", mine, parts[group.rank])


def broadcast(group: Group) -> None:
    for shape in _SHAPES:
        for source in range(group.size):
            for how, mine in group.laid(group.rank, shape):
                what = f"broadcast from {source} of {list(shape)}{how}"
                expected = group.brought(source, shape)
                group.compare(what, group.communicator.broadcast(mine, source), expected)
                group.compare(f"{what}, which is in place,", mine, expected)


def reduce_scatter(group: Group) -> None:
    for shape in ((3 * group.size, 4 * group.size), (group.size, group.size), (130 * group.size, group.size)):
        total = torch.stack([group.brought(rank, shape) for rank in range(group.size)]).sum(0)
        for how, mine in group.laid(group.rank, shape):
            for dim in (0, 1):
                part = total.chunk(group.size, dim)[group.rank].to(mine.dtype)
                found = group.communicator.reduce_scatter(mine.clone(), dim)
                group.compare(f"reduce_scatter along {dim} of {list(shape)}{how}", found, part)


def all_to_all(group: Group) -> None:
    for rows, columns in ((1, 13), (5, 3), (130, 1)):
        shape = (rows * group.size, columns)
        parts = [group.brought(rank, shape)[group.rank * rows :][:rows] for rank in range(group.size)]
        for how, mine in group.laid(group.rank, shape):
            found = group.communicator.all_to_all(mine)
            group.compare(f"all_to_all of {list(shape)}{how}", found, torch.cat(parts))


def send_recv(group: Group) -> None:
    """From rank to rank, and from the last to the first, two transfers at a time."""
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    for shape in _SHAPES:
        if 0 in shape:
            continue
        for how, mine in group.laid(group.rank, shape):
            what = f"send and recv of {list(shape)}{how}"
            try:
                if group.rank == 0:
                    _send_two(group, mine, after)
                expected = group.brought(before, shape)
                arrived = [torch.empty_like(expected, device=group.device.target) for _ in range(2)]
                for transfer in [group.communicator.recv(x, before) for x in arrived]:
                    transfer.wait()
                if group.rank > 0:
                    _send_two(group, mine, after)
            except PlatformError as error:
                raise ConformanceError(f"{what}: {error.message}") from error
            group.compare(what, arrived[0], expected)
            group.compare(f"{what}, the second of two,", arrived[1], -expected)


def _send_two(group: Group, x: Tensor, to: int) -> None:
    """Of the layout of x."""
    group.communicator.send(x, to)
    group.communicator.send(-x, to)


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
    {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "broadcast": broadcast,
        "reduce_scatter": reduce_scatter,
        "all_to_all": all_to_all,
        "send_recv": send_recv,
    }
)
ONCE: Mapping[str, Callable[[Group], None]] = MappingProxyType({"new_group": new_group, "agree": agree})
