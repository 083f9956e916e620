"""Checks that may hang or fault, all at once, each in a process of its own with a time limit. What each wrote last is
its result."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.gpu.chat import FailedError
from tools.gpu.running import Notes


@dataclass
class _Running:
    """A check's process, and the file that it writes to."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def last(self) -> str:
        lines = self.output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it wrote nothing"


def run(
    checks: Mapping[str, Sequence[str]], seconds: float, folder: Path, environment: Mapping[str, str], notes: Notes
) -> None:
    """checks: commands by name. seconds: of each. Notes what each output last as it ends. Raises FailedError if any
    failed, or was ended."""
    began = time.monotonic()
    going = {
        name: _started(command, folder / f"{number}.txt", environment)
        for number, (name, command) in enumerate(checks.items())
    }
    wrong = []
    while going:
        time.sleep(0.1)
        late = time.monotonic() - began > seconds
        for name, running in list(going.items()):
            status = running.process.poll()
            if status is None and not late:
                continue
            del going[name]
            if status is None:
                running.process.kill()
                running.process.wait()
            figure = "passed" if status == 0 else "hung" if status is None else f"ended with {status}"
            notes.add(**{name: f"{figure} after {time.monotonic() - began:.0f} s: {running.last}"})
            print(f"---- {name}\n{running.output.read_text(encoding='utf-8', errors='replace')}", flush=True)
            if status != 0:
                wrong.append(f"{name} {figure}: {running.last}")
    if wrong:
        raise FailedError("; ".join(wrong))


def _started(command: Sequence[str], output: Path, environment: Mapping[str, str]) -> _Running:
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=output.parent, env=dict(environment)
        )
    return _Running(process, output)
