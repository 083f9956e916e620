"""An engine that does what the task's platform says, in a process as a peer's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Stepped, drive
from benchmarks.task import PLAIN, Task
from benchmarks.tuning import Conversion

MODULE = "tests.unit.benchmarks.stub_driver"


def conversion(task: Task) -> Conversion:
    plain = Conversion("small.stub", MODULE, "whole")
    return plain if task.precision == PLAIN else Conversion("small.int8.stub", MODULE, "rounded", plain)


def bits(task: Task) -> float:
    return 8.5


def version() -> str:
    return "stub 1"


def server(environment: Path, task: Task, port: int) -> list[str]:
    return [sys.executable, "-m", "tests.unit.benchmarks.stub_server", str(port), task.platform]


class Stub:
    def __init__(self, task: Task) -> None:
        self.version = Path(task.weights).name
        self._task = task

    def generate(self, prompts: list[list[int]], tokens: int, stepped: Stepped) -> list[list[int]]:
        print("what a library prints")
        if self._task.platform == "fails":
            raise SystemExit("no such kernel")
        if self._task.platform == "leaves a process":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        for _ in range(tokens):
            time.sleep(0.03)
            stepped(range(len(prompts)))
        return [list(range(tokens))] * len(prompts)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        made_from = Path(sys.argv[1]).name
        Path(sys.argv[2]).write_text(f"{made_from}, {sys.argv[3]}\n", encoding="utf-8")
    else:
        drive(Stub)
