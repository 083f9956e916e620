"""Compares decode of a mixture of experts alone, in the shape of Qwen3-30B-A3B: the CPU platform's kernels, torch's,
and the time in which the machine reads the chosen experts once, in turn: `python -m benchmarks.experts`.

Expected before anything was measured: 0.85 of the reads at a batch of 1 and 0.75 at 8, where some experts have two
rows; torch's path, which calls oneDNN for each expert and copies its rows, is 1.5 to 3 times slower than that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.experts_task import ExpertsFigures, ExpertsTask
from benchmarks.limits import compiled, read_rate

KINDS = {"tessera": {}, "torch": {"TESSERA_CPU_KERNELS": "torch"}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--batch", type=int, action="append", help="may be repeated; default: 1, 8")
    parser.add_argument("--layers", type=int, default=4, help="of 1.2 GB each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the figures too")
    given = parser.parse_args()
    threads, figures = len(os.sched_getaffinity(0)), []
    print("batch    tessera      torch      reads      ratio  of reads")
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        for batch in given.batch or (1, 8):
            task = ExpertsTask(2048, 768, 128, 8, given.layers, batch, threads)
            took: dict[str, list[float]] = {**{kind: [] for kind in KINDS}, "reads": []}
            for _ in range(given.rounds):
                for kind, variables in KINDS.items():
                    found = _run(task, variables)
                    took[kind].append(found.seconds)
                took["reads"].append(found.chosen * task.of_expert / read_rate(library, threads))
            figures.append({**asdict(task), "seconds": took})
            print(_line(task, took), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"threads": threads, "figures": figures}, indent=1), encoding="utf-8")
    return 0


def _run(task: ExpertsTask, variables: dict[str, str]) -> ExpertsFigures:
    command = [sys.executable, "-m", "benchmarks.experts_task", json.dumps(asdict(task))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return ExpertsFigures(**json.loads(done.stdout.splitlines()[-1]))


def _line(task: ExpertsTask, took: dict[str, list[float]]) -> str:
    cells = "  ".join(f"{1e3 * statistics.median(took[name]):6.2f} ms" for name in (*KINDS, "reads"))
    ratio = statistics.median(b / a for a, b in zip(took["tessera"], took["torch"], strict=True))
    of_reads = statistics.median(b / a for a, b in zip(took["tessera"], took["reads"], strict=True))
    return f"{task.batch:5}  {cells}  {ratio:8.2f}  {of_reads:.2f}"


if __name__ == "__main__":
    sys.exit(main())
