"""An engine that does what the task's platform says, in a process as a peer's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measure import Task, drive
from benchmarks.tuning import Conversion


def conversion(model: str, dtype: str) -> Conversion:
    return Conversion(f"{model}.{dtype}.stub", "tests.unit.benchmarks.stub_driver")


class Stub:
    def __init__(self, task: Task) -> None:
        self.version = os.environ.get("STUB_VERSION", Path(task.weights).name)
        self._task = task

    def generate(self, prompts: list[list[int]], tokens: int) -> list[int]:
        print("what a library prints")
        if self._task.platform == "fails":
            raise SystemExit("no such kernel")
        if self._task.platform == "leaves a process":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(0.3 if tokens > 2 else 0)
        return [tokens] * len(prompts)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        Path(sys.argv[2]).write_text("converted\n", encoding="utf-8")
    else:
        drive(Stub)
