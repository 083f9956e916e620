"""Runs a module in the environment in which platforms/tpu is tested: `python -m tools.tpu pytest tests/tpu`. It has
JAX, torchax and libtpu besides what other tests need, and is installed into build/tpu, in the versions of
constraints.txt beside this file; core and the platform are this tree's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.own_environment import own_environment

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
    """The environment's Python. Raises CalledProcessError."""
    trees = ["-e", str(ROOT), "-e", f"{ROOT / 'platforms/tpu'}[libtpu]"]
    installs = (("hatchling", "editables"), ("--no-build-isolation", *PACKAGES, *trees))
    return own_environment(ENVIRONMENT, PINS, installs)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    command = [str(installed()), "-m", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
