"""llama.cpp for aarch64: built for the instructions of each path, with its own form of the model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.instructions import counting

SETTINGS = (
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    "-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc",
    "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_BUILD_COMMON=OFF",
)
FILE_TYPES = {"int8": ("Q8_0", 7), "int4": ("Q4_0", 2)}
"""Names, and numbers of enum llama_ftype."""


class LlamaCpp:
    """source: of llama.cpp. folder: for what is built and converted, and kept there."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder, self._built = source, folder, folder / "llama.cpp"
        self._driver = folder / "driver"

    def build(self, architecture: str) -> None:
        """For -march=architecture. Only the library of kernels differs."""
        kept = self._kernels(architecture)
        if (kept / "libggml-cpu.so").exists():
            return
        flags = [*SETTINGS, f"-DGGML_CPU_ARM_ARCH={architecture}"]
        subprocess.run(["cmake", "-S", self._source, "-B", self._built, *flags], check=True, stdout=sys.stderr)
        threads = str(len(os.sched_getaffinity(0)))
        make = ["cmake", "--build", self._built, "--target", "llama", "-j", threads]
        subprocess.run(make, check=True, stdout=sys.stderr)
        kept.mkdir(parents=True, exist_ok=True)
        for name in self._libraries.glob("libggml-cpu.so*"):
            shutil.copy2(name, kept)
        if not self._driver.exists():
            self._build_driver()

    def _build_driver(self) -> None:
        source = Path(__file__).with_name("llama_driver.cpp")
        headers = [f"-I{self._source / part}" for part in ("include", "ggml/include")]
        linked = [f"-L{self._libraries}", "-lllama", "-lggml", "-lggml-cpu", "-lggml-base"]
        compiler = ["aarch64-linux-gnu-g++", "-O2", "-std=c++17", *headers]
        subprocess.run([*compiler, "-o", self._driver, source, *linked], check=True)

    def convert(self, model: Path, precision: str, architecture: str) -> Path:
        plain = self._folder / "model.bf16.gguf"
        if not plain.exists():
            make = [sys.executable, "-m", "benchmarks.peers.make_gguf", model, plain, "bfloat16"]
            search = os.pathsep.join([str(self._source / "gguf-py"), *filter(None, sys.path)])
            subprocess.run(make, check=True, env={**os.environ, "PYTHONPATH": search})
        if precision == "plain":
            return plain
        name, number = FILE_TYPES[precision]
        target = self._folder / f"model.{name}.gguf"
        if not target.exists():
            emulator = [counting.EMULATOR, "-L", counting.ROOT_FOLDER, "-cpu", "max,sve=off"]
            quantize = [*self._command(architecture), str(plain), str(target), "quantize", str(number)]
            subprocess.run([*emulator, *quantize], check=True)
        return target

    def answer(self, emulator: list[str], architecture: str, model: Path, prompt: int, tokens: int) -> list[int]:
        command = [*emulator, *self._command(architecture), str(model), str(prompt), str(tokens)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [int(word) for word in said.split()]

    def _command(self, architecture: str) -> list[str]:
        """Begins with flags of the emulator."""
        return ["-E", f"LD_LIBRARY_PATH={self._kernels(architecture)}:{self._libraries}", str(self._driver)]

    def _kernels(self, architecture: str) -> Path:
        return self._folder / architecture

    @property
    def _libraries(self) -> Path:
        return self._built / "bin"
