"""Which engines there are to compare, and how each is run in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import cores
from benchmarks.measure import Task
from benchmarks.report import LIMIT, OURS
from benchmarks.tuning import Conversion, Tuning

ROOT = Path(__file__).parents[1]
DRIVERS = ("llama_cpp", "openvino", "tessera", "transformers", "vllm")
CONVERTED = "converted"  # folder beside the peers' environments
LONGEST_RUN = 3600  # seconds


class EngineError(Exception):
    """An engine could not be run; says why in one line."""


@dataclass(frozen=True)
class Engine:
    """name: its row. module: its driver. environment: the peer's, None for the one that runs this program. tuning: of
    its process."""

    name: str
    module: str
    environment: Path | None = None
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def python(self) -> str:
        return sys.executable if self.environment is None else str(self.environment / "bin" / "python")

    def run(self, task: Task) -> Iterator[dict[str, Any]]:
        """One result for each batch size, as they come. Raises EngineError."""
        if self.environment is not None:
            task = self._converted(task)
        command = [self.python, "-m", self.module, task.as_json()]
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._variables(),
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            ) as process,
            _ended_at_the_latest(process, LONGEST_RUN),
        ):
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
            if process.wait() != 0:
                raise EngineError(f"{self.name} ended with {process.returncode}: {_last_line(said)}")

    def _variables(self) -> dict[str, str]:
        """The environment: a peer does not see the libraries that this program was given by a path."""
        inherited = dict(os.environ)
        if self.environment is not None:
            inherited.pop("PYTHONPATH", None)
        return inherited | dict(self.tuning.variables)

    def _converted(self, task: Task) -> Task:
        """The task with the peer's own format of the model, which is made where it is not there yet."""
        convert = getattr(importlib.import_module(self.module), "conversion", None)
        if convert is None:
            return task
        assert self.environment is not None
        chosen: Conversion = convert(Path(task.model).name, task.dtype)
        target = self.environment.parent / CONVERTED / chosen.name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            partial = target.with_name(f"{target.name}.part")
            command = [self.python, "-m", chosen.module, task.model, str(partial), task.dtype]
            done = subprocess.run(command, cwd=ROOT, env=self._variables(), check=False, capture_output=True, text=True)
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
                raise EngineError(f"{self.name} could not convert the model: {last}")
            partial.rename(target)
        return replace(task, weights=str(target))


def ours() -> Engine:
    return _tuned(OURS, "benchmarks.peers.tessera", None)


def limits() -> Engine:
    return Engine(LIMIT, "benchmarks.limits")


def find_peers(folder: Path) -> tuple[list[Engine], list[str]]:
    """A peer for each virtual environment whose folder's name begins with a driver's (vllm, vllm-zentorch, llama.cpp),
    in the order of their names, and the folders that are none."""
    peers, others = [], []
    for environment in sorted(path for path in folder.iterdir() if (path / "bin" / "python").exists()):
        driver = environment.name.partition("-")[0].replace(".", "_")
        if driver not in DRIVERS or environment.name == OURS:
            others.append(environment.name)
            continue
        peers.append(_tuned(environment.name, f"benchmarks.peers.{driver}", environment))
    return peers, others


def _tuned(name: str, module: str, environment: Path | None) -> Engine:
    tuning = importlib.import_module(module).tuning(environment or Path(sys.prefix), cores())
    return Engine(name, module, environment, tuning)


@contextlib.contextmanager
def _ended_at_the_latest(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    """Ends the process and what it started after so many seconds, and in any case at the end of the block."""

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()


def _last_line(said: Any) -> str:
    said.seek(0)
    lines = [line.strip() for line in said if line.strip()]
    return lines[-1] if lines else "it says nothing"
