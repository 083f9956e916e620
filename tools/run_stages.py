"""Runs the stages that tools/stages.toml lists for check, test, test-all or nightly: begun in order, two at a time,
timed, up to the first failure. test-all also fails, at its end, if a stage took longer than its budget. Budgets and
limits are for the machine of tools/machine_speed.py; on a slower one they are longer by as much. Where a stage of
test-all took too long, the machine is measured once more, and budgets are for the slower of the two: one that others
share may have slowed down."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

import msgspec

from tools.machine_speed import slowdown

ROOT = Path(__file__).parents[1]
Command = Literal["check", "test", "test-all", "nightly"]
Outcome = Literal["passed", "failed", "did not run", "not reached"]
INCLUDES: dict[Command, tuple[Command, ...]] = {
    "check": ("check",),
    "test": ("check", "test"),
    "test-all": ("check", "test", "test-all"),
    "nightly": ("nightly",),
}
"""The stages of which commands each command runs."""
PACKAGE = "package "
"""Begins what names a Python package among the needs of a stage."""
MAX_WORKERS = 8  # of a stage: each loads torch; more would cost more memory than they save time
AT_ONCE = 2
"""Stages that run side by side where there are as many processors: many use only one, and none uses two to its end."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table, which explains the fields."""

    name: str
    command: str
    when: Command
    budget: float = math.inf  # seconds on two cores
    paths: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    minutes: float = 25.0
    alone: bool = False

    def obstacle(self, root: Path, search_path: str) -> str | None:
        """Why the stage cannot run here, or None."""
        if self.paths and not self.present(root):
            return f"no {' or '.join(self.paths)}"
        for need in self.needs:
            if need.startswith(PACKAGE):
                if find_spec(need.removeprefix(PACKAGE)) is None:
                    return f"needs the Python package {need.removeprefix(PACKAGE)}"
            elif not any(shutil.which(program, path=search_path) for program in need.split("|")):
                return f"needs {need.replace('|', ' or ')}"
        return None

    def on_slower(self, slowdown: float) -> Stage:
        """The same on a machine that takes so many times as long."""
        return msgspec.structs.replace(self, budget=self.budget * slowdown, minutes=self.minutes * slowdown)

    def present(self, root: Path) -> list[str]:
        return [path for path in self.paths if (root / path).is_dir()]

    def argv(self, root: Path, values: Mapping[str, str]) -> list[str]:
        return shlex.split(self.command.format(paths=shlex.join(self.present(root)), **values))


@dataclass(frozen=True)
class Result:
    """A stage's outcome. closing: the last line of its output, or why it did not run."""

    stage: Stage
    outcome: Outcome
    seconds: float = 0.0
    closing: str = ""

    @property
    def over_budget(self) -> bool:
        return self.seconds > self.stage.budget

    def on_slower(self, slowdown: float) -> Result:
        """The same on a machine that takes so many times as long as it was taken for."""
        return replace(self, stage=self.stage.on_slower(slowdown))


def read_stages(path: Path, command: Command) -> list[Stage]:
    """The stages of a table that a command runs, in the table's order."""
    table = msgspec.toml.decode(path.read_bytes(), type=dict[Literal["stage"], list[Stage]])
    return [stage for stage in table["stage"] if stage.when in INCLUDES[command]]


def run_stages(stages: Sequence[Stage], root: Path, *, require_all: bool) -> list[Result]:
    """Runs stages, which begin in order. None begins after one that failed or, if require_all, that cannot run; what
    runs beside that one ends by itself. A stage's output is printed when it ends, so that no two are mixed."""
    run = _Run(root, processors=_processors())
    results: dict[int, Result] = {}
    waiting = list(enumerate(stages))
    try:
        while waiting or run.running:
            while waiting and run.has_room(waiting[0][1]):
                index, stage = waiting.pop(0)
                obstacle = stage.obstacle(root, run.environment["PATH"])
                if obstacle is None:
                    run.begin(index, stage, last=not waiting)
                    continue
                print(f"---- {stage.name} did not run: {obstacle}", flush=True)
                outcome: Outcome = "failed" if require_all else "did not run"
                results[index] = Result(stage, outcome, closing=f"did not run: {obstacle}")
                if require_all:
                    waiting.clear()
            if run.running:
                results |= run.wait()
            if any(result.outcome == "failed" for result in results.values()):
                waiting.clear()
    finally:
        run.close()
    return [results.get(index, Result(stage, "not reached")) for index, stage in enumerate(stages)]


def _environment() -> dict[str, str]:
    """Puts the environment's programs first, limits each test process to one thread, and lets Python keep what it
    compiles: the tests start thousands of processes, of which each would compile core and its tests again."""
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"OMP_NUM_THREADS": "1", **inherited, "PATH": search_path, "PYTHONUNBUFFERED": "1"}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Run:
    """Stages under way."""

    # where they run
    root: Path
    # those that stages share
    processors: int
    # of their processes
    environment: Mapping[str, str] = field(default_factory=_environment)
    # whose share of what is too long for every run they have
    today: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    # stages under way, by their place in the table
    running: dict[int, Stage] = field(default_factory=dict)
    # of stages that ended, the place in the table, the result and the output; or why one could not be started
    ended: SimpleQueue[tuple[int, Result, str] | Exception] = field(default_factory=SimpleQueue)
    # those of the stages, ended ones too; None: no more are started
    processes: list[subprocess.Popen[str]] | None = field(default_factory=list)
    # held where a process is registered, started or ended
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def at_once(self) -> int:
        return min(AT_ONCE, self.processors)

    def has_room(self, stage: Stage) -> bool:
        """Whether a stage may begin beside what runs."""
        if stage.alone or any(other.alone for other in self.running.values()):
            return not self.running
        return len(self.running) < self.at_once

    def begin(self, index: int, stage: Stage, *, last: bool) -> None:
        """last: no stage follows, so that this one may have the workers of two."""
        workers = self.processors if stage.alone or last else self.processors // self.at_once
        values = {"workers": str(min(workers, MAX_WORKERS)), "today": self.today}
        argv = stage.argv(self.root, values)
        print(f"---- {stage.name}: {shlex.join(argv)}", flush=True)
        # A thread starts the process and waits for it, since an interrupt, which reaches the main thread alone, would
        # else come between the start and the entry in processes.
        with self.lock:
            threading.Thread(target=self._follow, args=(index, stage, argv), daemon=True).start()
            self.running[index] = stage

    def wait(self, timeout_s: float = math.inf) -> dict[int, Result]:
        """Waits until a stage ends, prints its output, and returns its result by its place in the table. Raises Empty
        if none ends in time."""
        deadline = time.monotonic() + timeout_s
        while self.ended.empty() and time.monotonic() < deadline:
            time.sleep(0.05)  # waiting in the queue would miss an interrupt that comes just before
        ended = self.ended.get_nowait()
        if isinstance(ended, Exception):
            self.running.clear()
            raise ended
        index, result, output = ended
        self.running.pop(index, None)  # it may have been interrupted before it stood there
        print(f"---- {result.stage.name} {result.outcome} after {result.seconds:.1f} s", flush=True)
        sys.stdout.write(output)
        sys.stdout.flush()
        return {index: result}

    def close(self) -> None:
        """Ends what still runs, of which the output so far is printed."""
        with self.lock:
            processes, self.processes = self.processes or [], None
        for process in processes:
            if process.returncode is None:
                _end(process)
        with suppress(Empty):  # an interrupt may have come after a result was taken
            while self.running:
                self.wait(10.0)

    def _follow(self, index: int, stage: Stage, argv: Sequence[str]) -> None:
        try:
            self.ended.put((index, *self._output(stage, argv)))
        except Exception as error:  # noqa: BLE001 - raised by who waits
            self.ended.put(error)

    def _output(self, stage: Stage, argv: Sequence[str]) -> tuple[Result, str]:
        """Runs a stage's process, which is ended if it takes too long, and returns its output too."""
        start, limit_s = time.perf_counter(), stage.minutes * 60
        with self.lock:
            if self.processes is None:
                return Result(stage, "failed", closing="interrupted"), ""
            process = subprocess.Popen(
                argv,
                cwd=self.root,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # so that everything it starts can be killed with it
            )
            self.processes.append(process)
        overtime = threading.Timer(limit_s, _end, (process,))
        overtime.start()
        assert process.stdout is not None
        try:
            with process.stdout:
                output = process.stdout.read()  # until whatever the process started has ended too
            status = process.wait()
        finally:
            overtime.cancel()
        seconds = time.perf_counter() - start
        closing = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")
        if status == -signal.SIGKILL or seconds > limit_s:
            status, closing = status or 1, f"killed, or ended after its {limit_s:g} s"
        return Result(stage, "failed" if status else "passed", seconds, closing), output


def _end(process: subprocess.Popen[str]) -> None:
    """Kills a process and what it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def print_table(results: Sequence[Result], total_s: float) -> None:
    """Prints one line per stage, with its seconds beside its budget and the last line of its output, and the total."""
    width = max(len(result.stage.name) for result in results)
    print("\n---- stages: seconds, budget")
    for result in results:
        budget = "" if math.isinf(result.stage.budget) else f"{result.stage.budget:.0f}"
        outcome = "over budget" if result.outcome == "passed" and result.over_budget else result.outcome
        line = f"{result.stage.name:<{width}}  {result.seconds:7.1f}  {budget:>5}  {outcome:<11}"
        print(f"{line}  {result.closing.strip('= ')}".rstrip())
    budgets = sum(result.stage.budget for result in results)
    print(f"{'total':<{width}}  {total_s:7.1f}  {'' if math.isinf(budgets) else f'{budgets:.0f}':>5}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=tuple(INCLUDES))
    parser.add_argument("--table", type=Path, default=ROOT / "tools/stages.toml")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--slowdown", type=float, help="of this machine beside the budgets' (default: measured)")
    arguments = parser.parse_args()
    start = time.perf_counter()
    stages, at_once = read_stages(arguments.table, arguments.command), min(AT_ONCE, _processors())
    if arguments.command != "check":  # whose stages come nowhere near their limits
        slower = arguments.slowdown or slowdown(at_once)
        print(f"---- this machine takes {slower:.2f} times as long as that of the budgets", flush=True)
        stages = [stage.on_slower(slower) for stage in stages]
    results = run_stages(stages, arguments.root, require_all=os.environ.get("TESSERA_REQUIRE_ALL") == "1")
    judges_budgets = arguments.command == "test-all"
    if judges_budgets and arguments.slowdown is None and any(result.over_budget for result in results):
        later = slowdown(at_once)
        print(f"---- it now takes {later:.2f} times as long", flush=True)
        results = [result.on_slower(max(1.0, later / slower)) for result in results]
    print_table(results, time.perf_counter() - start)
    slow = judges_budgets and any(result.over_budget for result in results)
    return 1 if slow or any(result.outcome == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
