"""Instructions of a decode step on ARM's extensions, by QEMU's counter: those of Tessera's kernels beside those of
llama.cpp, built for the same instructions, for the same model. A step is one native call of the engine, which itself
runs here and is not counted; llama.cpp's is all that it does. Instructions say nothing of time by themselves.

Run: python -m benchmarks.instructions --llama SOURCE --json FILE
SOURCE is llama.cpp's source (vendor/llama.cpp in that of llama-cpp-python). Needs Debian's g++-aarch64-linux-gnu and
qemu-user (its static emulators take no plugins), and cmake.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checkpoint import written
from benchmarks.gpu.models import LLAMA_8B, parameters
from benchmarks.instructions import counting
from benchmarks.instructions.llama import LlamaCpp
from benchmarks.instructions.ours import Job
from benchmarks.task import PRECISIONS, Task
from tests.platforms import foreign

ROOT = Path(__file__).parents[2]
COMPILER = "aarch64-linux-gnu-g++"
PLATFORM = "tessera_cpu.platform:CpuPlatform"
"""By its path, since its probe would ask this machine's processor."""
NEEDED = (COMPILER, counting.EMULATOR, "cmake", "gcc", "g++")
MODEL = {
    **LLAMA_8B,
    "vocab_size": 8192,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 1,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_scaling": None,
}
"""A layer of Llama 3.2 1B's shape, and as much of a vocabulary as that model has for each of its layers."""
PROMPT_TOKENS, STEPS = 16, 4


@dataclass(frozen=True)
class Kernels:
    """name: of Tessera's kernels. processor: as the emulator calls one that has their instructions. architecture: as a
    compiler calls those."""

    name: str
    processor: str
    architecture: str


KERNELS = (
    Kernels("neon", "cortex-a53", "armv8-a"),
    Kernels("neon_dotprod", "neoverse-n1", "armv8.2-a+fp16+dotprod"),
    Kernels("neon_bf16", "max,sve=off", "armv8.2-a+fp16+dotprod+bf16+i8mm"),
    Kernels("sve_256", "max,sve-default-vector-length=32", "armv8.2-a+fp16+sve"),
    Kernels("sve_256_bf16", "max,sve-default-vector-length=32", "armv8.2-a+fp16+dotprod+bf16+i8mm+sve"),
    Kernels("sve_512", "a64fx", "armv8.2-a+fp16+sve"),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("--llama", type=Path, help="llama.cpp's source; without it only Tessera is counted")
    parser.add_argument("--kernels", nargs="+", default=[one.name for one in KERNELS], help="which; default: all")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/instructions", help="for what is built, and kept")
    parser.add_argument("--json", type=Path, help="where to write the figures too")
    asked = parser.parse_args()
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        print(f"Not found here: {', '.join(missing)}.")
        return 1
    counted = Counted(asked.folder.resolve(), asked.llama and asked.llama.resolve())
    figures = []
    print("kernels        weights   Tessera  llama.cpp   (millions of instructions)")
    for kernels in KERNELS:
        for precision in asked.precisions if kernels.name in asked.kernels else ():
            figure = {"kernels": kernels.name, "precision": precision, **counted.step(kernels, precision)}
            figures.append(figure)
            print(line(figure), flush=True)
    if asked.json:
        about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "counted by": counting.version(), "compiler": compiler()}
        model = {"model": MODEL, "parameters": parameters(MODEL), "prompt": PROMPT_TOKENS, "steps": STEPS}
        asked.json.write_text(json.dumps({**about, **model, "figures": figures}, indent=1) + "\n", encoding="utf-8")
    return 0


def line(figure: Mapping[str, Any]) -> str:
    begins = f"{figure['kernels']:14} {figure['precision']:8} {figure['ours'] / 1e6:8.1f}"
    if "llama" not in figure:
        return begins
    return f"{begins} {figure['llama'] / 1e6:10.1f}   {figure['ours'] / figure['llama']:.2f}"


def compiler() -> str:
    asked = subprocess.run([COMPILER, "--version"], check=True, capture_output=True, text=True)
    return asked.stdout.splitlines()[0]


class Counted:
    """folder: for what is built. source: of llama.cpp, or None."""

    def __init__(self, folder: Path, source: Path | None) -> None:
        self._folder, self._library = folder, folder / "libtessera_cpu.so"
        self._model, self._into = folder / "model", folder / "count"
        self._model.mkdir(parents=True, exist_ok=True)
        (self._model / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        torch.manual_seed(0)
        written(self._model, MODEL, torch.device("cpu"))
        self._counter = counting.build_counter(folder)
        self._runner, self._heap = foreign.build_runner(COMPILER, folder), foreign.build_heap(folder)
        build = [sys.executable, str(ROOT / "platforms/cpu/csrc/build.py"), str(self._library)]
        self._library.exists() or subprocess.run(build, env={**os.environ, "CXX": COMPILER}, check=True)
        self._llama = LlamaCpp(source, folder) if source else None

    def step(self, kernels: Kernels, precision: str) -> dict[str, Any]:
        """ours, llama: instructions of a decode step, the mean of STEPS. agree: whether the answers are the same."""
        emulator = counting.command(self._counter, kernels.processor, self._into)
        ours, answer = self._ours(emulator, kernels, precision)
        if self._llama is None:
            return {"ours": ours}
        llama, theirs = self._theirs(self._llama, emulator, kernels, precision)
        return {"ours": ours, "llama": llama, "agree": answer == theirs}

    def _ours(self, emulator: list[str], kernels: Kernels, precision: str) -> tuple[int, list[int]]:
        task = Task(
            part="decode",
            model=str(self._model),
            weights=str(self._model),
            dtype="bfloat16",
            input=PROMPT_TOKENS,
            output=STEPS + 1,
            batches=(1,),
            vocab=MODEL["vocab_size"],
            threads=1,
            seed=0,
            precision=precision,
            platform=PLATFORM,
        )
        prompt = [place + 3 for place in range(PROMPT_TOKENS)]
        job = Job(
            [*emulator, str(self._runner)], str(self._library), str(self._into), task.as_json(), prompt, STEPS + 1
        )
        variables = {**os.environ, **foreign.heap_variables(self._heap), "TESSERA_CPU_KERNELS": kernels.name}
        command = [sys.executable, "-m", "benchmarks.instructions.ours", job.as_json()]
        done = subprocess.run(
            command, cwd=ROOT, env={**variables, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        return found["decode"] // STEPS, found["answer"]

    def _theirs(self, llama: LlamaCpp, emulator: list[str], kernels: Kernels, precision: str) -> tuple[int, list[int]]:
        llama.build(kernels.architecture)
        model = llama.convert(self._model, precision, kernels.architecture)
        counts, answer = [], list[int]()
        for tokens in (1, STEPS + 1):
            self._into.unlink(missing_ok=True)
            answer = llama.answer(emulator, kernels.architecture, model, PROMPT_TOKENS, tokens)
            counts.append(counting.count(self._into))
        return (counts[1] - counts[0]) // STEPS, answer


if __name__ == "__main__":
    sys.exit(main())
