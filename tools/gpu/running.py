"""Parts, each in a process of its own with a time limit: one that fails, hangs or dies loses only itself, and keeps the
figures that it had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tools.gpu.chat import FailedError, Figures

Outcome = Literal["passed", "failed", "out of time", "not begun"]
LONGEST = 160  # characters of figures in a line
MARK = "TESSERA_GPU_PART"
"""The variable by which all processes that a part started are found, those in sessions of their own too."""


@dataclass(frozen=True)
class Limits:
    """Of a part, in seconds."""

    # When it is ended.
    longest: float
    # With less left, beginning it would show nothing.
    shortest: float


@dataclass
class Result:
    """figures: by name. closing: the figures, or why it failed, in one line."""

    name: str
    outcome: Outcome = "passed"
    seconds: float = 0.0
    closing: str = ""
    figures: Figures = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"{self.name:<10} {self.seconds:7.1f} s  {self.outcome:<11}  {self.closing}".rstrip()


class Notes:
    """What a part has found so far, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.figures: Figures = {}

    def add(self, **figures: Any) -> None:
        self._write(**figures)

    def failed(self, reason: str) -> None:
        self._write(failed=reason)

    def _write(self, **figures: Any) -> None:
        self.figures |= figures
        write(self.path, self.figures)


def write(path: Path, record: Any) -> None:
    """JSON, in one piece: a reader sees the old file or the new one."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def act(part: Callable[[Notes], None], notes: Notes) -> int:
    """Runs a part in this process; returns its exit status."""
    try:
        part(notes)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the part's result
        if not isinstance(error, FailedError):
            traceback.print_exc()
        notes.failed(" ".join(str(error).split())[:300] or type(error).__name__)
        return 1
    return 0


class Parts:
    """Runs parts one after the other."""

    def __init__(
        self,
        command: Callable[[str, float], Sequence[str]],
        out: Path,
        work: Path,
        seconds: float,
        facts: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        page: Callable[[Sequence[Result]], str] = lambda results: "",
    ) -> None:
        """seconds: for all parts together. page: what verdict.txt says of the results so far."""
        # Of a part's process, by its name and its seconds.
        self.command = command
        # The folder for gpu.json and gpu.log.
        self.out = out
        # A folder for this run only.
        self.work = work
        # What gpu.json says besides.
        self.facts = dict(facts or {})
        self.clock, self.page = clock, page
        self.deadline = clock() + seconds
        self.results: list[Result] = []

    def run(self, limits: Mapping[str, Limits], needed: str = "") -> list[Result]:
        """needed: the part without which no other can begin."""
        for name, limit in limits.items():
            self._add(self._run_part(name, limit, needed))
        return self.results

    def _run_part(self, name: str, limit: Limits, needed: str) -> Result:
        if any(result.name == needed and result.outcome != "passed" for result in self.results):
            return Result(name, "not begun", closing=f"{needed} did not pass")
        left = self.deadline - self.clock()
        if left < limit.shortest:
            return Result(name, "not begun", closing=f"{max(left, 0):.0f} s were left, and it needs {limit.shortest:g}")
        return self._in_a_process(name, min(limit.longest, left))

    def _in_a_process(self, name: str, seconds: float) -> Result:
        mark, notes = f"{os.getpid()}-{name}", self.work / f"{name}.json"
        begin = self.clock()
        with (self.out / "gpu.log").open("ab") as log:
            log.write(f"==== {name}\n".encode())
            log.flush()
            process = subprocess.Popen(
                self.command(name, seconds),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: mark},
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end(process, mark)
        result = Result(name, seconds=round(self.clock() - begin, 2))
        result.figures = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
        reason = result.figures.pop("failed", None)
        result.closing = " ".join(_short_figures(result.figures))[:LONGEST]
        if status is None:
            result.outcome = "out of time"
            result.closing = f"after {seconds:.0f} s; {result.closing or 'no figures yet'}"
        elif status != 0:
            result.outcome = "failed"
            why = reason or f"its process ended with {status}; gpu.log has the rest"
            result.closing = f"{why} {result.closing}".rstrip()
        return result

    def _add(self, result: Result) -> None:
        self.results.append(result)
        print(result.line, flush=True)
        write(self.out / "gpu.json", {**self.facts, "parts": [asdict(one) for one in self.results]})
        (self.out / "verdict.txt").write_text(self.page(self.results), encoding="utf-8")


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kills a part's process group, and whatever else carries its mark."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for number in marked(mark):
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


def marked(mark: str) -> Iterator[int]:
    """The processes that were started with MARK=mark. None where there is no /proc."""
    wanted = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            found = wanted in place.read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if found:
            yield int(place.parent.name)


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """A command's stdout; all that it writes goes to this process's own output too. Raises FailedError with its last
    line."""
    print("$", *command, flush=True)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, flush=True)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
        failed = [line for line in done.stdout.splitlines() if line.startswith("failed")]
        raise FailedError((failed or lines[-1:])[0][:300])
    return done.stdout


def _short_figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """The figures that fit a line."""
    for name, value in figures.items():
        if isinstance(value, float):
            yield f"{name} {value:.3g}"
        elif isinstance(value, str | int) and len(str(value)) < 90:
            yield f"{name} {value}"
