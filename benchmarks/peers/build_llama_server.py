"""Builds llama-server for this processor, from the llama.cpp in the source of llama-cpp-python:
python -m benchmarks.peers.build_llama_server PEERS/llama.cpp

Uses the version installed in the environment, and puts the program into its folder llama-server. Needs cmake, a C++
compiler and network access for pip, and takes about ten minutes on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-python"
SETTINGS = ("-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF")


def program(environment: Path) -> Path:
    return environment / "llama-server" / "llama-server"


def build(environment: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        source, made = _source(environment, Path(name)), Path(name) / "build"
        threads = str(len(os.sched_getaffinity(0)))
        configured = [*SETTINGS, "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_TOOLS=ON"]
        subprocess.run(["cmake", "-S", str(source), "-B", str(made), *configured], check=True)
        subprocess.run(["cmake", "--build", str(made), "--target", "llama-server", "-j", threads], check=True)
        program(environment).parent.mkdir(exist_ok=True)
        shutil.copy2(made / "bin" / "llama-server", program(environment))


def _source(environment: Path, folder: Path) -> Path:
    """The vendor/llama.cpp of the package, unpacked in the folder."""
    python = str(environment / "bin" / "python")
    asking = ["-c", f"from importlib.metadata import version; print(version({PACKAGE!r}))"]
    version = subprocess.run([python, *asking], check=True, capture_output=True, text=True).stdout.strip()
    download = ["-m", "pip", "download", "--no-binary", PACKAGE, "--no-deps"]
    subprocess.run([python, *download, "--dest", str(folder), f"{PACKAGE}=={version}"], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp"))


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
