"""Silver: collectives over all of the platform's devices, each worker a process as core starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import msgspec
from safetensors.torch import load_file
from torch import Tensor

from tessera.config import ParallelConfig
from tessera.executor.workers import LOOPBACK
from tessera.platform.platform import WorkerSpec
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent
from tessera.testing.conformance.collective_messages import Said, Start, checks_of
from tessera.testing.conformance.target import Target

_SECONDS = 60.0
_SUBJECT = "collectives"


def collective_cases(target: Target) -> Iterator[Case]:
    """One a collective and dtype; all of them run in the processes that the first one starts."""
    if target.devices < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("it has one device (--devices says otherwise)"))
        return
    specs = target.platform.placement(ParallelConfig(tensor_parallel_size=target.devices))
    if len(specs) < 2:
        yield Case("collectives", "silver", _SUBJECT, lambda: absent("one worker has all of its devices"))
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
                [sys.executable, "-m", "tessera.testing.conformance.collective_process"],
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
                texts = [f"{name}: not every rank came to its end ({problem or 'one before it failed'})"]
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
    return f"{_SECONDS:g} s were not enough"


def _verdict(ranks: Ranks, name: str) -> Verdict:
    found = ranks.found.get(name)
    if found is not None:
        raise ConformanceError(found.text, found.tensors)
    return PASSED
