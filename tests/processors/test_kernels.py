"""The kernels for other processors than this one: their own tests, with each kernel run by an emulator of a processor
that has the instructions, and none that are newer. What it lacks must not be chosen: the emulator would end it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.platforms import foreign
from tests.platforms.another_library import run_tests_emulated

CPU = Path(__file__).parents[2] / "platforms/cpu"
NAMES = ("native", "quantized", "embedding", "blocks", "attention", "conformance", "sampling", "batch_invariance")
TESTS = [CPU / f"tests/test_{name}.py" for name in NAMES]
UNFIT = ("a_request", "far-apart")
"""Tests that run whole engines, which takes long, or over memory that is not on the heap."""


@dataclass(frozen=True)
class Processor:
    """model: as the emulator calls it. sets: the instruction sets to be found, worst to best."""

    architecture: str
    model: str
    sets: tuple[str, ...]

    @property
    def compiler(self) -> str:
        return f"{self.architecture}-linux-gnu-g++"

    @property
    def emulator(self) -> list[str]:
        return [f"qemu-{self.architecture}-static", "-L", f"/usr/{self.architecture}-linux-gnu", "-cpu", self.model]

    @property
    def is_there(self) -> bool:
        return all(map(shutil.which, (self.compiler, self.emulator[0], "g++")))


PROCESSORS = [
    Processor("aarch64", "cortex-a53", ("portable", "neon")),
    Processor("aarch64", "neoverse-n1", ("portable", "neon", "neon_dotprod")),
    Processor("aarch64", "max,sve=off", ("portable", "neon", "neon_dotprod", "neon_bf16")),
]
on_each = pytest.mark.parametrize(
    "processor",
    [
        pytest.param(
            one,
            id=f"{one.architecture}-{one.model}",
            marks=[
                pytest.mark.xdist_group(one.architecture),
                pytest.mark.skipif(not one.is_there, reason=f"needs {one.compiler} and {one.emulator[0]}"),
            ],
        )
        for one in PROCESSORS
    ],
)


@dataclass(frozen=True)
class Built:
    library: Path
    runner: Path
    heap: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Processor], Built]:
    @cache
    def of(architecture: str, compiler: str) -> Built:
        folder = tmp_path_factory.mktemp(architecture)
        library = folder / "libtessera_cpu.so"
        build = [sys.executable, str(CPU / "csrc/build.py"), str(library), "-O2"]
        subprocess.run(build, env={**os.environ, "CXX": compiler}, check=True)
        return Built(library, foreign.build_runner(compiler, folder), foreign.build_heap(folder))

    return lambda processor: of(processor.architecture, processor.compiler)


@on_each
def test_its_best_kernels(processor: Processor, built: Callable[[Processor], Built]) -> None:
    assert passed(processor, built(processor), processor.sets[-1]) > 300


@pytest.mark.nightly
@on_each
def test_all_its_kernels(processor: Processor, built: Callable[[Processor], Built]) -> None:
    assert passed(processor, built(processor), " or ".join(processor.sets)) > 600


def passed(processor: Processor, built: Built, sets: str) -> int:
    """How many of the kernels' tests pass that are named for these sets."""
    emulator, chosen = [*processor.emulator, str(built.runner)], f"({sets}) and not {' and not '.join(UNFIT)}"
    ran = run_tests_emulated(emulator, built.library, chosen, TESTS, foreign.heap_variables(built.heap))
    assert tuple(ran.sets) == processor.sets
    return ran.passed
