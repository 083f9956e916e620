"""The kernels for other processors than this one: their own tests, with each kernel run by an emulator of a processor
that has the instructions, and none that are newer. What it lacks must not be chosen: the emulator would end it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from tests.platforms import foreign
from tests.platforms.another_library import KERNEL_TESTS, run_tests_emulated

CPU = Path(__file__).parents[2] / "platforms/cpu"
SHARES = 6
"""Of the tests of `native`, `make test-all` runs one in so many on each model, others on each day."""
UNFIT = ("a_request", "far-apart", "forked_processes")
"""Tests that run whole engines, which takes long, over memory that is not on the heap, or in processes of their own,
which share no runner."""


@dataclass(frozen=True)
class Architecture:
    """name: as its compiler calls it. emulated: as the emulator does. models: the instruction sets to be found on
    models of processors, worst to best."""

    name: str
    emulated: str
    models: dict[str, tuple[str, ...]]

    @property
    def compiler(self) -> str:
        return f"{self.name}-linux-gnu-g++"

    @property
    def emulator(self) -> str:
        return f"qemu-{self.emulated}-static"

    @property
    def is_there(self) -> bool:
        return all(map(shutil.which, (self.compiler, self.emulator, "g++")))

    def command(self, model: str) -> list[str]:
        return [self.emulator, "-L", f"/usr/{self.name}-linux-gnu", "-cpu", model]


ARM = Architecture(
    "aarch64",
    "aarch64",
    {
        "cortex-a53": ("portable", "neon"),
        "neoverse-n1": ("portable", "neon", "neon_dotprod"),
        "max,sve=off": ("portable", "neon", "neon_dotprod", "neon_bf16"),
        "max,sve-default-vector-length=16": ("portable", "neon", "neon_dotprod", "neon_bf16"),
        "max,sve-default-vector-length=32": (
            "portable",
            "neon",
            "neon_dotprod",
            "neon_bf16",
            "sve_256",
            "sve_256_bf16",
        ),
        "a64fx": ("portable", "neon", "sve_512"),
    },
)
POWER = Architecture(
    "powerpc64le",
    "ppc64le",
    {
        "power8": ("portable",),
        "power9": ("portable", "vsx"),
        "power10": ("portable", "vsx", "mma"),
    },
)
RISC_V = Architecture("riscv64", "riscv64", {"rv64": ("portable",)})
on_each = pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(
            one,
            id=one.name,
            marks=pytest.mark.skipif(not one.is_there, reason=f"needs g++, {one.compiler} and {one.emulator}"),
        )
        for one in (ARM, POWER, RISC_V)
    ],
)


@on_each
def test_the_best_kernels_of_each_model(architecture: Architecture, tmp_path: Path, day: date) -> None:
    built = Built(architecture, tmp_path)
    for model, sets in architecture.models.items():
        assert built.passed(model, sets[-1:], KERNEL_TESTS[:1], share=(day.toordinal(), SHARES)) > 10


@pytest.mark.nightly
@on_each
def test_all_kernels_of_each_model(architecture: Architecture, tmp_path: Path) -> None:
    built = Built(architecture, tmp_path)
    tried: set[str] = set()
    for model, sets in architecture.models.items():
        if untried := [name for name in sets if name not in tried]:
            assert built.passed(model, untried, KERNEL_TESTS) > 400 * len(untried)
        tried.update(untried)


class Built:
    """The library for an architecture, and what calls it."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self.architecture, self.library = architecture, folder / "libtessera_cpu.so"
        build = [sys.executable, str(CPU / "csrc/build.py"), str(self.library)]
        subprocess.run(build, env={**os.environ, "CXX": architecture.compiler}, check=True)
        self.runner = foreign.build_runner(architecture.compiler, folder)
        self.heap = foreign.build_heap(folder)

    def passed(self, model: str, sets: Sequence[str], names: Sequence[str], share: tuple[int, int] = (0, 1)) -> int:
        """How many tests pass that are named for these instruction sets, of the files with these names. share: see
        run_tests_emulated."""
        emulator = [*self.architecture.command(model), str(self.runner)]
        chosen = f"({' or '.join(sets)}) and not {' and not '.join(UNFIT)}"
        tests = [CPU / f"tests/test_{name}.py" for name in names]
        ran = run_tests_emulated(emulator, self.library, chosen, tests, foreign.heap_variables(self.heap), share)
        assert tuple(ran.sets) == self.architecture.models[model]
        return ran.passed
