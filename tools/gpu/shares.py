"""Conformance cases in several processes at once, since compiling a kernel takes longer than running it. A process that
dies, or is stuck in a case, is started again behind that case."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.gpu.chat import FailedError, Figures
from tools.gpu.ledger import BEGUN, Ledger, Line
from tools.gpu.running import Notes, run

STUCK = 90
"""Seconds after which a case that is not done counts as hung. A case with a whole engine compiles its kernels in it."""
NAMED = 25
"""How many failures a part's figures name."""


@dataclass
class _Share:
    """A process and its cases. written: lines of these cases, and since when. before: lines when it started."""

    ids: Sequence[str]
    process: subprocess.Popen[bytes]
    written: int = 0
    since: float = 0.0
    before: int = 0

    def look(self, lines: Mapping[str, Line], now: float, stuck: float) -> None:
        """Kills the process if it has been in one case for too long."""
        written = sum(2 - (lines[one]["status"] == BEGUN) for one in self.ids if one in lines)
        if written != self.written:
            self.written, self.since = written, now
        elif written > self.before and now - self.since > stuck:
            self.process.kill()
            self.process.wait()

    @property
    def goes_on(self) -> bool:
        """Whether it ended too early, but not before its first case."""
        return self.process.returncode != 0 and self.written > self.before


class Shares:
    """flags: the flags of tools.gpu.cases that choose cases. ledger: a new file for the results. number: of
    processes."""

    def __init__(
        self,
        flags: Sequence[str],
        ledger: Path,
        number: int,
        folder: Path,
        environment: Mapping[str, str],
        *,
        program: Sequence[str] = (sys.executable, "-m", "tools.gpu.cases"),
        stuck: float = STUCK,
    ) -> None:
        self.command = [*program, *flags]
        self.ledger = Ledger(ledger)
        self.folder, self.environment, self.stuck = folder, environment, stuck
        self.ids: list[str] = json.loads(run(self.command, folder, environment).splitlines()[-1])
        self.number = max(1, min(number, len(self.ids)))

    def run(self, notes: Notes) -> None:
        """Runs all cases, noting how far it is. Raises FailedError if any failed, or has no result."""
        self.ledger.path.unlink(missing_ok=True)
        going = {number: _Share(self.ids[number :: self.number], self._start(number)) for number in range(self.number)}
        while going:
            time.sleep(0.2)
            # A share that has ended by now has written all its lines.
            ended = [number for number, share in going.items() if share.process.poll() is not None]
            lines = self.ledger.read()
            notes.add(**figures(lines, len(self.ids)))
            for share in going.values():
                share.look(lines, time.monotonic(), self.stuck)
            for number in ended:
                share = going.pop(number)
                if share.goes_on:
                    written = share.written
                    going[number] = _Share(share.ids, self._start(number), written, time.monotonic(), before=written)
        found = figures(self.ledger.read(), len(self.ids))
        notes.add(**found)
        if found["failed_cases"] or found["done"] < found["of"]:
            first = next(iter(found["failures"].items()), ("", f"{found['of'] - found['done']} cases have no result"))
            raise FailedError(f"{first[0]}: {first[1][:120]};".lstrip(": "))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        place = ["--ledger", str(self.ledger.path), "--share", f"{number}/{self.number}"]
        return subprocess.Popen([*self.command, *place], cwd=self.folder, env=dict(self.environment))


def figures(lines: Mapping[str, Line], number: int) -> Figures:
    """How many cases had which result, what failed, and which kernels are slower than the reference."""
    counts = Counter(line["status"] for line in lines.values())
    failed = {name: str(line["text"])[:300] for name, line in lines.items() if line["status"] == "failed"}
    running = [name for name, line in lines.items() if line["status"] == BEGUN]
    timings = [timing for line in lines.values() for timing in line.get("timings", ())]
    ratios = {f"{one['op']} {one['dtype']} {one['tokens']}": one["reference"] / one["native"] for one in timings}
    return {
        "passed": counts["passed"],
        "fall_back": counts["falls back"] + counts["n/a"],
        "failed_cases": len(failed),
        "done": len(lines) - len(running),
        "of": number,
        "running": running,
        "failures": dict(list(failed.items())[:NAMED]),
    } | ({"times_as_fast": {name: round(ratio, 2) for name, ratio in sorted(ratios.items())}} if ratios else {})
