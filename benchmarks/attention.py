"""Compares decode attention alone at a long context: Tessera's CPU kernel, vLLM's, and the machine's read bandwidth, in
turn: `python -m benchmarks.attention --peers PEERS`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.attention_task import AttentionTask, as_json
from benchmarks.limits import compiled, read_rate
from benchmarks.tuning import preload

HEADS = {"qwen2.5-0.5b": (14, 2, 64), "llama3.2-1b": (32, 8, 64), "heads of 128": (32, 8, 128)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="folder of environments; vLLM is the one named vllm")
    parser.add_argument("--batch", type=int, action="append", help="may be repeated; default: 1, 8")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where to write the figures too")
    given = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    figures = []
    print("heads          batch    tessera           vllm              reads      ratio  of reads")
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        for name, (heads, kv_heads, dim) in HEADS.items():
            for batch in given.batch or (1, 8):
                task = AttentionTask(heads, kv_heads, dim, batch, given.context, threads)
                took: dict[str, list[float]] = {"tessera": [], "vllm": [], "reads": []}
                for _ in range(given.rounds):
                    took["tessera"].append(_run(sys.executable, "tessera", task, {}))
                    if given.peers is not None:
                        took["vllm"].append(_vllm(given.peers / "vllm", task))
                    took["reads"].append(task.nbytes / read_rate(library, threads))
                figures.append({"name": name, "batch": batch, "context": given.context, "seconds": took})
                print(_line(name, task, took), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"threads": threads, "figures": figures}, indent=1), encoding="utf-8")
    return 0


def _vllm(environment: Path, task: AttentionTask) -> float:
    libraries, _ = preload(environment, system=("tcmalloc_minimal",), bundled=("libiomp5.so",))
    return _run(str(environment / "bin" / "python"), "vllm", task, {"LD_PRELOAD": libraries})


def _run(python: str, peer: str, task: AttentionTask, variables: Mapping[str, str]) -> float:
    """Seconds per call."""
    command = [python, "-m", f"benchmarks.peers.{peer}_attention", as_json(task)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _line(name: str, task: AttentionTask, took: Mapping[str, list[float]]) -> str:
    middle = {who: statistics.median(seconds) for who, seconds in took.items() if seconds}

    def cell(who: str) -> str:
        if who not in middle:
            return f"{'-':16}"
        return f"{1e6 * middle[who]:6.0f} us {task.nbytes / middle[who] / 1e9:4.0f} GB/s"

    of_reads = statistics.median(a / b for a, b in zip(took["reads"], took["tessera"], strict=True))
    ratio = "-"
    if took["vllm"]:
        ratio = f"{statistics.median(b / a for a, b in zip(took['tessera'], took['vllm'], strict=True)):.2f}"
    return f"{name:14} {task.batch:5}   {'  '.join(map(cell, took))}  {ratio:>5}  {of_reads:.2f}"


if __name__ == "__main__":
    sys.exit(main())
