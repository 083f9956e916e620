"""Tries tessera-xla on torch_xla with PJRT's CPU (tests/torch_xla): `python -m tools.xla`. torch_xla needs torch 2.9,
so both are installed into build/xla, an environment of its own, with the libraries of CUDA that this torch names: 7 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / "build/xla"
OTHERS_PINS, PINS = ROOT / "constraints.txt", HERE / "constraints.txt"
PACKAGES = ("pytest", "torch", "torch_xla")
SETTINGS = {"PJRT_DEVICE": "CPU", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT)}


def installed() -> Path:
    """The environment's Python. Raises CalledProcessError."""
    python, done = ENVIRONMENT / "bin/python", ENVIRONMENT / "installed"
    wanted = "".join(f"{name}=={version}\n" for name, version in (pins(OTHERS_PINS) | pins(PINS)).items())
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        print("installing torch 2.9 and torch_xla into build/xla, which takes some minutes", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        pinned = ENVIRONMENT / "constraints.txt"
        pinned.write_text(wanted, encoding="utf-8")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", str(pinned)]
        subprocess.run([*pip, "hatchling", "editables"], check=True)
        trees = ["-e", str(ROOT), "-e", str(ROOT / "platforms/xla")]
        subprocess.run([*pip, "--no-build-isolation", *PACKAGES, *trees], check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def pins(file: Path) -> dict[str, str]:
    """Versions by package."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def main() -> int:
    command = [str(installed()), "-m", "tests.torch_xla.answers", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
