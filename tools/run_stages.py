"""Runs the stages that tools/stages.toml lists for check, test, test-all or nightly: in order, timed, up to the first
failure. test-all also fails, at its end, if a stage took longer than its budget."""

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
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).parents[1]
Command = Literal["check", "test", "test-all", "nightly"]
INCLUDES: dict[Command, tuple[Command, ...]] = {
    "check": ("check",),
    "test": ("check", "test"),
    "test-all": ("check", "test", "test-all"),
    "nightly": ("nightly",),
}
"""The stages of which commands each command runs."""
PACKAGE = "package "
"""Begins what names a Python package among the needs of a stage."""
MAX_WORKERS = 8  # each loads torch; more would cost more memory than they save time


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table, which explains the fields."""

    name: str
    command: str
    when: Command
    budget: float = math.inf  # seconds on two cores
    paths: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    minutes: float = 15.0

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

    def present(self, root: Path) -> list[str]:
        return [path for path in self.paths if (root / path).is_dir()]

    def argv(self, root: Path, values: Mapping[str, str]) -> list[str]:
        return shlex.split(self.command.format(paths=shlex.join(self.present(root)), **values))


@dataclass(frozen=True)
class Result:
    """A stage's outcome. closing: the last line of its output, or why it did not run."""

    stage: Stage
    outcome: Literal["passed", "failed", "did not run", "not reached"]
    seconds: float = 0.0
    closing: str = ""

    @property
    def over_budget(self) -> bool:
        return self.seconds > self.stage.budget


def read_stages(path: Path, command: Command) -> list[Stage]:
    """The stages of a table that a command runs, in the table's order."""
    table = msgspec.toml.decode(path.read_bytes(), type=dict[Literal["stage"], list[Stage]])
    return [stage for stage in table["stage"] if stage.when in INCLUDES[command]]


def run_stages(stages: Sequence[Stage], root: Path, *, require_all: bool) -> list[Result]:
    """Runs stages in order. Stops at the first that fails or, if require_all, that cannot run."""
    environment = _environment()
    values = {"workers": str(_workers()), "today": datetime.now(UTC).date().isoformat()}
    results: list[Result] = []
    for index, stage in enumerate(stages):
        results.append(_run_stage(stage, root, environment, values, require_all=require_all))
        if results[-1].outcome == "failed":
            return results + [Result(rest, "not reached") for rest in stages[index + 1 :]]
    return results


def _run_stage(
    stage: Stage, root: Path, environment: Mapping[str, str], values: Mapping[str, str], *, require_all: bool
) -> Result:
    obstacle = stage.obstacle(root, environment["PATH"])
    if obstacle is not None:
        print(f"---- {stage.name} did not run: {obstacle}", flush=True)
        return Result(stage, "failed" if require_all else "did not run", closing=f"did not run: {obstacle}")
    argv = stage.argv(root, values)
    print(f"---- {stage.name}: {shlex.join(argv)}", flush=True)
    start = time.perf_counter()
    status, closing = _stream(argv, root, environment, limit_s=stage.minutes * 60)
    return Result(stage, "failed" if status else "passed", time.perf_counter() - start, closing)


def _stream(argv: Sequence[str], root: Path, environment: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    """Runs a command, forwards its output as it arrives, and returns its exit status and last line."""
    process = subprocess.Popen(
        argv,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that everything it starts can be killed with it
    )
    overtime = threading.Timer(limit_s, _end, (process,))
    overtime.start()
    closing = ""
    assert process.stdout is not None
    try:
        with process.stdout:
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                closing = line.strip() or closing
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        overtime.cancel()
    if status == -signal.SIGKILL:
        closing = f"killed, or ended after its {limit_s:g} s"
    return status, closing


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Puts the environment's programs first, limits each test process to one thread, and lets Python keep what it
    compiles: the tests start thousands of processes, of which each would compile core and its tests again."""
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {"OMP_NUM_THREADS": "1", **inherited, "PATH": search_path, "PYTHONUNBUFFERED": "1"}


def _workers() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, MAX_WORKERS)


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
    arguments = parser.parse_args()
    start = time.perf_counter()
    stages = read_stages(arguments.table, arguments.command)
    results = run_stages(stages, arguments.root, require_all=os.environ.get("TESSERA_REQUIRE_ALL") == "1")
    print_table(results, time.perf_counter() - start)
    slow = arguments.command == "test-all" and any(result.over_budget for result in results)
    return 1 if slow or any(result.outcome == "failed" for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
