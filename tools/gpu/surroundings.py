"""Where the parts run: the machine's Python, with the packages of this tree in front of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from tools.gpu.running import run

ROOT = Path(__file__).parents[2]
_FAKES = ("tests/fakechip", "tests/torch_fakechip", "platforms/rocm", "platforms/xpu")
"""What the rehearsal's platform imports besides."""


@dataclass(frozen=True)
class Surroundings:
    """What a part runs with."""

    # A name or a dotted path.
    platform: str
    # torch's name of it.
    device: str
    # On the host, with Triton's interpreter, and a little of everything.
    rehearsal: bool
    # Of what the machine's Python lacks.
    wheels: Path
    # For results.
    out: Path
    # For this run only.
    work: Path
    # Of the part.
    seconds: float
    # Measurements of the part bench; all, if that is empty.
    only: tuple[str, ...] = ()

    @property
    def site(self) -> Path:
        return self.work / "site"

    @cached_property
    def environment(self) -> dict[str, str]:
        """Of all commands."""
        path = [self.site, ROOT, *(ROOT / name for name in (_FAKES if self.rehearsal else ()))]
        more = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.work)}
        if self.rehearsal:
            more |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        return {**os.environ, **more}

    def tessera(self, *arguments: str) -> str:
        return self.python("-m", "tessera.cli", *arguments)

    def python(self, *arguments: str) -> str:
        """What Python prints. Raises FailedError."""
        return run([sys.executable, *arguments], self.work, self.environment)

    def add(self, *wanted: str) -> None:
        """Installs packages, and what they need and the machine's Python lacks, into `site`. Downloads nothing. What is
        installed already stays as it is, since `pip --target` alone would install all of it again."""
        listed = self.work / "lacking.json"
        self._pip("--dry-run", "--report", str(listed), *wanted)
        found = json.loads(listed.read_text(encoding="utf-8"))["install"]
        places = [unquote(one["download_info"]["url"].removeprefix("file://")) for one in found]
        if places:
            self._pip("--no-deps", "--target", str(self.site), *places)

    def _pip(self, *arguments: str) -> None:
        common = ["--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-build-isolation"]
        find = ["--find-links", str(self.wheels)] if self.wheels.is_dir() else []
        # Without a C++ compiler, the CPU platform is installed without its kernels, which nothing here needs.
        command = [sys.executable, "-m", "pip", *common, *find, *arguments]
        run(command, self.work, {**self.environment, "CXX": "none"})

    def copied(self, package: str) -> str:
        """A copy of a package's folder, to build in."""
        target = self.work / "sources" / package
        shutil.copytree(ROOT / package, target, ignore=shutil.ignore_patterns("*.so", "__pycache__", "tests"))
        return str(target)


def obstacle(device: str, wheels: Path, needed: Sequence[str] = ("hatchling", "msgspec", "pluggy")) -> str | None:
    """Why nothing can run here, or None."""
    if device != "cpu":
        program = (
            f"import sys, torch; a = torch.accelerator.current_accelerator(); sys.exit(not a or a.type != {device!r})"
        )
        if not _runs(program):
            return f"torch finds no {device} here"
    has_all = _runs(f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {list(needed)!r})))")
    if has_all or any(wheels.glob("*.whl")):
        return None
    return f"no wheels in {wheels.name}: make gpu-wheels downloads them"


def _runs(program: str) -> bool:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0
