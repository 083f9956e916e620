"""The engines to compare, their precisions, and how to run each."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.conversion import convert, file_bits
from benchmarks.machine import cores
from benchmarks.report import OURS
from benchmarks.running import EngineError, results
from benchmarks.served import Server, free_port, run
from benchmarks.task import FILE, PLAIN, PRECISIONS, SHORT, Task
from benchmarks.tuning import Tuning

DRIVERS = ("llama_cpp", "openvino", "tessera", "transformers", "vllm")
READ_BYTES = 2**24  # read at once, to bring a file into the page cache


@dataclass(frozen=True)
class Engine:
    """A row of the comparison."""

    name: str
    # Its driver.
    module: str
    # The peer's; None for this program's.
    environment: Path | None = None
    # Of its process.
    tuning: Tuning = field(default_factory=Tuning)
    precision: str = PLAIN
    # The engine's name for the precision.
    variant: str = "bf16"
    # Folder of models in peers' formats.
    converted: Path = Path("converted")

    @property
    def row(self) -> str:
        return f"{self.name} {self.variant}"

    @property
    def python(self) -> str:
        return sys.executable if self.environment is None else str(self.environment / "bin" / "python")

    def takes(self, part: str) -> bool:
        """Whether it supports a part."""
        return part != "http" or hasattr(self._driver, "server")

    def prepared(self, task: Task) -> Task:
        """The task with this precision, and with the model in the peer's own format, which is created if necessary.
        Raises EngineError."""
        task = replace(task, precision=self.precision)
        choose = getattr(self._driver, "conversion", None)
        chosen = None if choose is None else choose(task)
        if chosen is None:
            return task
        try:
            path = convert(chosen, Path(task.model), self.converted, self.python, self.variables())
        except EngineError as error:
            raise EngineError(f"{self.row} could not convert the model: {error}") from error
        return replace(task, weights=str(path))

    def loaded(self, task: Task) -> Generator[dict[str, Any]]:
        """Loads the engine, and measures a batch size each time the next result is requested. Raises EngineError, as
        does the generator."""
        measured = self._measured(self.prepared(task))
        next(measured)
        return measured

    def _measured(self, task: Task) -> Generator[dict[str, Any]]:
        """Yields the facts about the loaded engine first, then the results."""
        about = {"bits": self._bits(task)}
        if task.part == "start":
            _read_whole(Path(task.weights))
            for _ in self._results(task):  # an untimed start, which brings libraries into the page cache too
                pass
        with contextlib.closing(self._served(task) if task.part == "http" else self._results(task)) as lines:
            loaded = next(lines, None)
            if loaded is None:
                raise EngineError(f"{self.row} ended before it was loaded")
            about |= loaded
            yield about
            for result in lines:
                yield about | result

    def _results(self, task: Task) -> Generator[dict[str, Any]]:
        task = replace(task, began=time.monotonic())
        return results(self.row, [self.python, "-m", self.module, task.as_json()], self.variables())

    def _served(self, task: Task) -> Generator[dict[str, Any]]:
        port = free_port()
        environment = self.environment or Path(sys.prefix)
        command = self._driver.server(environment, task, port)
        more = getattr(self._driver, "REQUEST", {})
        asking = [self.python, "-c", f"import json; from {self.module} import version; print(json.dumps(version()))"]
        (version,) = results(self.row, asking, self.variables())
        server = Server(command, self.variables(), more)
        with contextlib.closing(run(self.row, server, port, task)) as lines:
            yield {"version": version} | next(lines)
            yield from lines

    def _bits(self, task: Task) -> float:
        """Bits per weight, according to the driver or else the size of the files."""
        stated = getattr(self._driver, "bits", None)
        return file_bits(Path(task.weights), Path(task.model)) if stated is None else stated(task)

    @property
    def _driver(self) -> ModuleType:
        return importlib.import_module(self.module)

    def variables(self) -> dict[str, str]:
        """The environment variables. A peer must not see the libraries on this program's PYTHONPATH."""
        inherited = dict(os.environ)
        if self.environment is not None:
            inherited.pop("PYTHONPATH", None)
        return inherited | dict(self.tuning.variables)


def ours(dtype: str, converted: Path) -> list[Engine]:
    return _variants(OURS, "benchmarks.peers.tessera", None, dtype, converted)


def find_peers(folder: Path, dtype: str, converted: Path) -> tuple[list[Engine], list[str]]:
    """The rows of each virtual environment whose folder name starts with a driver's (vllm, vllm-zentorch, llama.cpp),
    sorted by name, and the names of other environments."""
    peers, others = [], []
    for environment in sorted(path for path in folder.iterdir() if (path / "bin" / "python").exists()):
        driver = environment.name.partition("-")[0].replace(".", "_")
        if driver not in DRIVERS or environment.name == OURS:
            others.append(environment.name)
            continue
        peers += _variants(environment.name, f"benchmarks.peers.{driver}", environment, dtype, converted)
    return peers, others


def in_turn(engines: list[Engine]) -> list[tuple[Engine, ...]]:
    """The engines to load together: ours and one rival of the same precision, so that both are measured within a
    minute."""
    turns: list[tuple[Engine, ...]] = []
    for precision in PRECISIONS:
        same = [engine for engine in engines if engine.precision == precision]
        own = tuple(engine for engine in same if engine.name == OURS)
        rivals = [engine for engine in same if engine.name != OURS]
        turns += [(*own, rival) for rival in rivals] or [own][: len(own)]
    return turns


def _variants(name: str, module: str, environment: Path | None, dtype: str, converted: Path) -> list[Engine]:
    driver = importlib.import_module(module)
    tuning = driver.tuning(environment or Path(sys.prefix), cores())
    named = {PLAIN: SHORT[dtype], **driver.QUANTIZED}
    if getattr(driver, "LOADS_FILES", False):
        named[FILE] = "GGUF"
    return [
        Engine(name, module, environment, tuning, precision, variant, converted) for precision, variant in named.items()
    ]


def _read_whole(path: Path) -> None:
    for file in path.iterdir() if path.is_dir() else (path,):
        with file.open("rb") as opened:
            while opened.read(READ_BYTES):
                pass
