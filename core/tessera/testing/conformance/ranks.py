"""Silver: tests on all of the platform's devices, with one process per worker, as core starts them: collectives, a
sharded model, and on each device its memory figures and every op."""

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
from typing import TextIO

import msgspec
import torch
from safetensors.torch import load_file, save_file

from tessera.config import EngineConfig, ParallelConfig
from tessera.config.environment import for_children
from tessera.engine.engine import silent
from tessera.engine.startup import Phases, StartedEngine, bring_up
from tessera.errors import RefusedError
from tessera.executor.workers import LOOPBACK
from tessera.platform.collectives import Communicator
from tessera.platform.device import Device
from tessera.platform.platform import WorkerSpec
from tessera.runner.collectives import join
from tessera.runner.worker import Worker
from tessera.testing.conformance.case import (
    PASSED,
    Case,
    ConformanceError,
    Status,
    Verdict,
    absent,
    described,
    falls_back,
)
from tessera.testing.conformance.collectives import IN_EACH_DTYPE, ONCE, Group
from tessera.testing.conformance.ops import OpTrial, dtype_of
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import ObservedExecutor, TinyAnswers, TinyRun, compare_answers, prompts_of

_SECONDS = 60.0
_SECONDS_OF_A_COLLECTIVE = 20.0  # nothing large is compiled for one
_MOST_HANGS = 3
HUNG = "none of them finished a check in"
_SUBJECT = "collectives"


def rank_cases(target: Target) -> Iterator[Case]:
    """One per check. All of them run in the processes that the first one starts, since starting takes longest."""
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


@dataclass
class Ranks:
    """A process for each of the target's workers. Together they run all checks, once."""

    target: Target
    specs: Sequence[WorkerSpec]

    @cached_property
    def results(self) -> Mapping[str, Verdict | ConformanceError]:
        """The result of each check. A check that stops a process has failed, and new processes continue with the
        others; if it hung, the others of its subject would too, and are not tried. If they cannot even join each other,
        or hang for the third time, all that are left have failed."""
        found: dict[str, Verdict | ConformanceError] = {}
        subjects, hung = {check.id: check.subject for check in checks_of(self.target)}, 0
        left = list(subjects)
        while left:
            with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as name:
                folder = Path(name)
                outputs = [folder / f"answers-{spec.rank}" for spec in self.specs]
                stopped = self.run(folder, outputs, left)
                said = [_read(path) for path in outputs]
                tried = left
                if stopped is not None:
                    hung += stopped.hung
                    came_through = [check for check, answer in said[stopped.rank].items() if not answer.ended]
                    if came_through and hung < _MOST_HANGS:  # the first is MET
                        last = left[min(len(came_through), len(left)) - 1]
                        tried = [check for check in left if check == last or all(check in rank for rank in said)]
                        if stopped.hung:
                            alike = [check for check in left if subjects[check] == subjects[last]]
                            found |= {check: ConformanceError(f"{check}: not tried, {last} hung") for check in alike}
                found |= {check: self._outcome(check, said, stopped, folder) for check in tried}
                left = [check for check in left if check not in found]
        return found

    def run(self, folder: Path, outputs: Sequence[Path], checks: list[str]) -> Stopped | None:
        """Runs checks in new processes. None if all ranks finished."""
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for spec, output in zip(self.specs, outputs, strict=True):
                processes.append(self._started(spec, folder, output, checks))
            return _awaited(processes, outputs, checks)
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def _started(self, spec: WorkerSpec, folder: Path, output: Path, checks: list[str]) -> subprocess.Popen[bytes]:
        start = RankJob(self.target.path, spec, (folder / "rendezvous").as_uri(), str(folder), checks)
        with output.open("wb") as answers:
            process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import run_rank; run_rank()"],
                stdin=subprocess.PIPE,
                stdout=answers,
                env={"OMP_NUM_THREADS": "1", **for_children(), "GLOO_SOCKET_IFNAME": LOOPBACK, **spec.environment},
            )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(msgspec.json.encode(start))
        return process

    def _outcome(
        self, check: str, reports: Sequence[Mapping[str, RankReport]], stopped: Stopped | None, folder: Path
    ) -> Verdict | ConformanceError:
        """Failed if it failed on any rank, or if not every rank finished it."""
        answers = [rank[check] for rank in reports if check in rank]
        wrong = next((answer for answer in answers if answer.status == "failed"), None)
        if wrong is not None:
            files = sorted(folder.glob(f"{_file(check)}-*.safetensors"))
            return ConformanceError(wrong.text, load_file(files[0]) if files else {})
        if len(answers) < len(self.specs):
            assert stopped is not None, "all ranks finished"
            return ConformanceError(f"{check}: not every rank finished ({stopped.why})")
        return Verdict(answers[0].status, answers[0].text)


@dataclass(frozen=True)
class Stopped:
    """The rank that did not finish, and why."""

    rank: int
    why: str

    @property
    def hung(self) -> bool:
        return self.why.startswith(HUNG)


def _awaited(
    processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path], checks: Sequence[str]
) -> Stopped | None:
    """Waits until all ranks have ended, one has failed, or none has answered for as long as the next check may take.
    The time begins with the last answer, because kernels may be compiled on the way."""
    said, since = [0 for _ in outputs], time.monotonic()
    while time.monotonic() - since < (limit := _limit(min(said), checks)):
        codes = [process.poll() for process in processes]
        failed = next((rank for rank, code in enumerate(codes) if code), None)
        if failed is not None:
            return Stopped(failed, f"rank {failed} ended with exit code {codes[failed]}")
        if all(code == 0 for code in codes):
            return None
        lines = [path.read_bytes().count(b"\n") for path in outputs]
        if lines != said:
            said, since = lines, time.monotonic()
        time.sleep(0.02)
    return Stopped(said.index(min(said)), f"{HUNG} {limit:g} s")


def _limit(answers: int, checks: Sequence[str]) -> float:
    """Seconds that the check may take which comes after so many answers, of which the first is MET."""
    under_way = checks[answers - 1] if 0 < answers <= len(checks) else ""
    return _SECONDS_OF_A_COLLECTIVE if under_way.startswith("collectives/") else _SECONDS


def _verdict(ranks: Ranks, check: str) -> Verdict:
    found = ranks.results[check]
    if isinstance(found, ConformanceError):
        raise found
    return found


# ---- what the ranks are told, and what they say


class RankJob(msgspec.Struct):
    """folder: for the tensors of failures. checks: ids of those to run."""

    platform: str
    spec: WorkerSpec
    rendezvous: str
    folder: str
    checks: list[str]


class RankReport(msgspec.Struct):
    """A rank's verdict on a check. ended: it raised an unexpected error, after which the group cannot be used."""

    check: str
    status: Status
    text: str = ""
    ended: bool = False


MET = "met"
"""What a rank says first, when it has joined the others."""


def _read(path: Path) -> Mapping[str, RankReport]:
    answers = (msgspec.json.decode(line, type=RankReport) for line in path.read_bytes().splitlines())
    return {answer.check: answer for answer in answers}


@dataclass(frozen=True)
class RankCheck:
    """id, subject: of its case. run: in each rank; raises ConformanceError."""

    id: str
    subject: str
    run: Callable[[RankTarget], Verdict]


def checks_of(target: Target) -> Iterator[RankCheck]:
    """In the order they run."""
    dtypes = target.platform.capabilities.dtypes
    for name, check in IN_EACH_DTYPE.items():
        for dtype in dtypes:
            yield RankCheck(f"collectives/{name}-{dtype}", name, partial(_in_dtype, check, dtype))
    for name, check in ONCE.items():
        yield RankCheck(f"collectives/{name}", name, partial(_in_dtype, check, dtypes[0]))
    yield RankCheck("devices/memory", "memory", memory)
    yield RankCheck("devices/own", "memory", own_device)
    yield RankCheck("tensor-parallel/llama", "tensor parallel", tensor_parallel)
    for name in [] if target.brings_a_runner else target.ops.names():
        if target.ops[name].kernel is not None:
            yield RankCheck(f"devices/{name}", name, partial(_op, name))


# ---- one rank


@dataclass(frozen=True)
class RankTarget:
    """One rank: its target, with its own device; the communicator of all ranks; the folder that they share."""

    target: Target
    communicator: Communicator
    folder: Path


def run_rank() -> None:
    """One rank of the group, in a process of its own: a Start on standard input, a Said for each check on standard
    output. What a platform prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=RankJob)
    with answers:
        _run_rank(start, answers)


def _run_rank(start: RankJob, answers: TextIO) -> None:
    target = Target(start.platform, worker=start.spec)
    communicator = join(target.platform, start.spec, start.rendezvous, target.device)
    member = RankTarget(target, communicator, Path(start.folder))
    _say(answers, RankReport(MET, "passed"))
    checks = {check.id: check for check in checks_of(target)}
    for name in start.checks:
        said = _checked(checks[name], member)
        _say(answers, said)
        if said.ended:
            os._exit(1)  # the others may wait for this one for ever; whoever started them ends them
    communicator.close()


def _say(answers: TextIO, report: RankReport) -> None:
    answers.write(f"{msgspec.json.encode(report).decode()}\n")
    answers.flush()


def _checked(check: RankCheck, member: RankTarget) -> RankReport:
    rank = member.communicator.rank
    try:
        verdict = check.run(member)
    except ConformanceError as error:
        if error.tensors:
            save_file(dict(error.tensors), member.folder / f"{_file(check.id)}-{rank}.safetensors")
        return RankReport(check.id, "failed", error.text)
    except Exception as error:  # noqa: BLE001  # as Case.result
        return RankReport(check.id, "failed", f"{check.id}, rank {rank}: {described(error)}", ended=True)
    return RankReport(check.id, verdict.status, verdict.text)


def _file(check: str) -> str:
    return check.replace("/", ".")


def _in_dtype(check: Callable[[Group], None], dtype: str, member: RankTarget) -> Verdict:
    group = Group(member.communicator, member.target.device, dtype)
    check(group)
    if group.wrong:
        raise group.wrong[0]
    return PASSED


# ---- a model sharded over the ranks


_PROMPTS = (1, 5, 17, 60, 90)  # tokens; the last one comes in two chunks
_ANSWER = 8  # tokens


def tensor_parallel(member: RankTarget) -> Verdict:
    """A model that is sharded over the ranks must answer as it does on one device of the reference."""
    size, dtype, prompts = member.communicator.size, member.target.exact_dtype, prompts_of(_PROMPTS)
    try:
        with RankRun(member, dtype) as sharded:
            _add_requests(sharded, prompts, dtype)
    except RefusedError as refused:
        return absent(refused.message)
    with TinyRun(Target.named("reference"), dtype, ranks=size, logprobs=0) as whole:
        _add_requests(whole, prompts, dtype)
    what = f"a model on {size} devices, rank {member.communicator.rank}"
    compare_answers(what, TinyAnswers.from_run(sharded), TinyAnswers.from_run(whole), dtype)
    return PASSED


def _add_requests(run: TinyRun, prompts: Sequence[Sequence[int]], dtype: str) -> None:
    """Greedy; and in float32 also drawn, so hot that the vocabulary's padding would be drawn if it could."""
    run.ask(prompts, _ANSWER)
    if dtype == "float32":
        run.ask(prompts, _ANSWER, temperature=3.0)


class RankRun(TinyRun):
    """One rank's part of an engine. Every rank has a scheduler of its own: all ranks sample the same tokens, so their
    steps are the same."""

    def __init__(self, member: RankTarget, dtype: str) -> None:
        self.member = member
        size = member.communicator.size
        super().__init__(member.target, dtype, ranks=size, workers=size, logprobs=0)

    def start_up(self, config: EngineConfig) -> StartedEngine:
        return bring_up(config, _RankExecutor(config, self.member), silent, Phases())


class _RankExecutor(ObservedExecutor):
    def __init__(self, config: EngineConfig, member: RankTarget) -> None:
        self.member = member
        super().__init__(config)

    def make_worker(self) -> Worker:
        return _RankWorker(self)


class _RankWorker(Worker):
    """Uses the group that the ranks have already joined."""

    def __init__(self, executor: _RankExecutor) -> None:
        self.member = executor.member
        assert self.member.target.worker is not None
        super().__init__(executor.config, executor.platform, self.member.target.worker)

    def join_group(self, device: Device) -> Communicator:
        return self.member.communicator

    def close(self) -> None:
        """Leaves the group open for the next checks."""


# ---- each device by itself


_TENSOR_BYTES = 1 << 26
"""Bytes: more than an allocator keeps ready, so that the device's own figure has to change."""
_TOKENS = 19


def memory(member: RankTarget) -> Verdict:
    """One rank after the other, so that no other device's memory changes meanwhile."""
    rank, deadline = member.communicator.rank, time.monotonic() + _SECONDS
    while rank and not (member.folder / f"turn-{rank - 1}").exists():
        if time.monotonic() > deadline:
            raise ConformanceError(f"memory: rank {rank - 1} did not finish")
        time.sleep(0.005)
    try:
        return _check_figures(member.target.device, rank)
    finally:
        (member.folder / f"turn-{rank}").touch()


def _check_figures(device: Device, rank: int) -> Verdict:
    before = device.memory()
    if before.host:
        return absent("the devices' memory is the host's")
    if before.free < 2 * _TENSOR_BYTES:
        return absent(f"only {before.free} bytes are free")
    held = torch.zeros(_TENSOR_BYTES, dtype=torch.uint8, device=device.target)
    device.synchronize()
    taken = before.free - device.memory().free
    if taken < _TENSOR_BYTES // 2:  # other processes may give some back meanwhile
        raise ConformanceError(
            f"memory: rank {rank} allocated {held.nbytes} bytes on {device.target}, but its free memory went down by "
            f"{taken} bytes; the figures have to be those of the rank's own device"
        )
    return PASSED


def own_device(member: RankTarget) -> Verdict:
    """No two ranks may have opened the same device: one rank after the other holds memory, which no other may miss."""
    device, rank, size = member.target.device, member.communicator.rank, member.communicator.size
    if device.memory().host:
        return absent("the devices' memory is the host's")
    for owner in range(size):
        _meet(member, f"before-{owner}")
        before = device.memory().free
        _meet(member, f"at-{owner}")
        held = torch.zeros(_TENSOR_BYTES if rank == owner else 1, dtype=torch.uint8, device=device.target)
        device.synchronize()
        _meet(member, f"after-{owner}")
        taken = before - device.memory().free
        if rank != owner and taken >= _TENSOR_BYTES // 2:
            raise ConformanceError(
                f"memory: rank {owner} allocated {_TENSOR_BYTES} bytes, and rank {rank} has {taken} bytes less, so "
                "both have opened the same device"
            )
        _meet(member, f"done-{owner}")
        del held
    _check_index(member)
    return PASSED


def _check_index(member: RankTarget) -> None:
    """In a process that finds the worker's device beside others, it must be the one that is opened."""
    target, worker = member.target.device.target, member.target.worker
    assert worker is not None
    index = worker.devices[0]
    if target.type == "cpu" or target.index in (None, index):
        return
    if torch.get_device_module(target).device_count() > index:
        raise ConformanceError(f"memory: rank {member.communicator.rank} has device {index}, but opened {target}")


def _meet(member: RankTarget, where: str) -> None:
    """Waits for all ranks, without a collective. Raises ConformanceError if they do not come."""
    member.folder.joinpath(f"{where}-{member.communicator.rank}").touch()
    deadline = time.monotonic() + _SECONDS
    while not all(member.folder.joinpath(f"{where}-{rank}").exists() for rank in range(member.communicator.size)):
        if time.monotonic() > deadline:
            raise ConformanceError("memory: not every rank came to the same place")
        time.sleep(0.002)


def _op(name: str, member: RankTarget) -> Verdict:
    """Tests an op at its first sample spec in each dtype that the kernel supports. Bronze covers the other specs; what
    can go wrong here is the device."""
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
    return PASSED if tried else falls_back("the kernel supports none of the op's sample specs")
