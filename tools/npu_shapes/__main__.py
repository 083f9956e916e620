"""torch_npu is installed into build/torch_npu-VERSION, apart from the environment, since without CANN torch cannot be
imported where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.npu_shapes.stubs import make_stubs

ROOT = Path(__file__).parents[2]
VERSION = "2.13.0"
FOLDER = ROOT / f"build/torch_npu-{VERSION}"


def main() -> int:
    if not (FOLDER / f"torch_npu-{VERSION}.dist-info").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(FOLDER), f"torch_npu=={VERSION}"], check=True)
    stubs = FOLDER / "stubs"
    make_stubs(FOLDER / "torch_npu", stubs)
    path = os.pathsep.join([str(FOLDER), str(ROOT / "platforms/ascend"), *filter(None, sys.path)])
    environment = {
        **os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(stubs), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "tools.npu_shapes.shapes"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
