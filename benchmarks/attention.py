"""Compares decode attention alone at a long context: Tessera's CPU kernel, vLLM's, and what the machine reads and
multiplies, in turn: `python -m benchmarks.attention --peers PEERS`. Latent attention is timed beside the machine alone:
its heads share what they read, so that with many of them multiplying takes longer than reading."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.attention_task import AttentionTask, LatentTask, as_json
from benchmarks.limits import compiled, kernel_rate, read_rate
from benchmarks.tuning import preload

HEADS = {"qwen2.5-0.5b": (14, 2, 64), "llama3.2-1b": (32, 8, 64), "heads of 128": (32, 8, 128)}
LATENTS = {"deepseek-v2-lite": (16, 512, 64, 128, 128), "deepseek-v3": (128, 512, 64, 128, 128)}
DTYPES = ("float32", "bfloat16")
"""In which products may be computed; which a machine has kernels for differs."""

Task = AttentionTask | LatentTask


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
    print(
        "heads             batch    tessera              vllm                 reads                products   ratio  "
        "of reads  of limit"
    )
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        for name, task in _tasks(given.batch or (1, 8), given.context, threads):
            took: dict[str, list[float]] = {"tessera": [], "vllm": [], "reads": [], "products": []}
            for _ in range(given.rounds):
                peer = "tessera_latent" if isinstance(task, LatentTask) else "tessera"
                took["tessera"].append(_run(sys.executable, peer, task, {}))
                if given.peers is not None and isinstance(task, AttentionTask):
                    took["vllm"].append(_vllm(given.peers / "vllm", task))
                took["reads"].append(task.nbytes / read_rate(library, threads))
                rate = max(kernel_rate(library, dtype, threads) for dtype in DTYPES)
                took["products"].append(task.operations / rate if rate else 0.0)
            figures.append({"name": name, "batch": task.batch, "context": given.context, "seconds": took})
            print(_line(name, task, took), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"threads": threads, "figures": figures}, indent=1), encoding="utf-8")
    return 0


def _tasks(batches: Sequence[int], context: int, threads: int) -> Iterator[tuple[str, Task]]:
    for name, heads in HEADS.items():
        yield from ((name, AttentionTask(*heads, batch, context, threads)) for batch in batches)
    for name, latent in LATENTS.items():
        yield from ((name, LatentTask(*latent, batch, context, threads)) for batch in batches)


def _vllm(environment: Path, task: AttentionTask) -> float:
    libraries, _ = preload(environment, system=("tcmalloc_minimal",), bundled=("libiomp5.so",))
    return _run(str(environment / "bin" / "python"), "vllm", task, {"LD_PRELOAD": libraries})


def _run(python: str, peer: str, task: Task, variables: Mapping[str, str]) -> float:
    """Seconds per call."""
    command = [python, "-m", f"benchmarks.peers.{peer}_attention", as_json(task)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _line(name: str, task: Task, took: Mapping[str, list[float]]) -> str:
    middle = {who: statistics.median(seconds) for who, seconds in took.items() if seconds}

    def cell(who: str) -> str:
        if who not in middle:
            return f"{'-':19}"
        return f"{1e6 * middle[who]:7.0f} us {task.nbytes / middle[who] / 1e9:4.0f} GB/s"

    limits = [max(both) for both in zip(took["reads"], took["products"], strict=True)]
    of_reads, of_limit = (
        statistics.median(a / b for a, b in zip(limit, took["tessera"], strict=True))
        for limit in (took["reads"], limits)
    )
    ratio = "-"
    if took["vllm"]:
        ratio = f"{statistics.median(b / a for a, b in zip(took['tessera'], took['vllm'], strict=True)):.2f}"
    cells = "  ".join(map(cell, ("tessera", "vllm", "reads")))
    products = f"{1e6 * middle['products']:6.0f} us"
    return f"{name:17} {task.batch:5}   {cells}  {products}  {ratio:>5}  {of_reads:8.2f}  {of_limit:8.2f}"


if __name__ == "__main__":
    sys.exit(main())
