from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.instructions.counting import count

ROOT = Path(__file__).parents[3]


def test_what_it_needs_is_said_in_one_line() -> None:
    command = [sys.executable, "-m", "benchmarks.instructions"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "Not found here: aarch64-linux-gnu-g++, qemu-aarch64, cmake, gcc, g++.\n"


def test_a_count_is_what_the_emulator_s_plugin_wrote(tmp_path: Path) -> None:
    (tmp_path / "count").write_bytes((1 << 40).to_bytes(8, "little") + b"more")
    assert count(tmp_path / "count") == 1 << 40
