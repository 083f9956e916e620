"""Runs a module in the environment in which platforms/tpu is tested: `python -m tools.tpu pytest tests/tpu`. It has
JAX, torchax and libtpu besides what other tests need, and is installed into build/tpu, in the versions of
constraints.txt beside this file; core and the platform are this tree's."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / "build/tpu"
PINS = (ROOT / "constraints.txt", HERE / "constraints.txt")
PACKAGES = ("copier", "hypothesis", "pytest", "pytest-asyncio", "pytest-xdist", "torch")
SETTINGS = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
    "TPU_SKIP_MDS_QUERY": "1",
    "PYTHONPATH": str(ROOT),
}
"""JAX's CPU is four devices, whose programs are not optimized, as compiling them is most of what tests do. Nobody looks
for a chip: libtpu only compiles."""


def installed() -> Path:
    """The environment's Python; who wants it at the same time waits. Raises CalledProcessError."""
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    with (ENVIRONMENT.parent / "tpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed()


def _installed() -> Path:
    python, done = ENVIRONMENT / "bin/python", ENVIRONMENT / "installed"
    wanted = "".join(file.read_text(encoding="utf-8") for file in PINS)
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pinned = [word for file in PINS for word in ("-c", str(file))]
        # Most of what is installed is never imported, and Python compiles what is.
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", *pinned]
        subprocess.run([*pip, "hatchling", "editables"], check=True)
        trees = ["-e", str(ROOT), "-e", f"{ROOT / 'platforms/tpu'}[libtpu]"]
        subprocess.run([*pip, "--no-build-isolation", *PACKAGES, *trees], check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    command = [str(installed()), "-m", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
