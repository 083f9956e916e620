"""The emulator, with a plugin that counts the instructions that it executes."""

from __future__ import annotations

import subprocess
from pathlib import Path

EMULATOR, ROOT_FOLDER = "qemu-aarch64", "/usr/aarch64-linux-gnu"
COUNT_BYTES = 8


def build_counter(folder: Path) -> Path:
    made = folder / "libcounter.so"
    source = Path(__file__).with_name("counter.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
    return made


def command(counter: Path, processor: str, into: Path) -> list[str]:
    """The emulator of a model of processor. into: the file that has the count."""
    return [EMULATOR, "-L", ROOT_FOLDER, "-cpu", processor, "-plugin", f"{counter},into={into}"]


def count(into: Path) -> int:
    return int.from_bytes(into.read_bytes()[:COUNT_BYTES], "little")


def version() -> str:
    said = subprocess.run([EMULATOR, "--version"], check=True, capture_output=True, text=True).stdout
    return said.splitlines()[0]
