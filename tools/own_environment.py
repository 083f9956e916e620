"""A virtual environment of its own for what must not be installed beside the tree: other versions, or large tools."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DONE = "installed"
"""The file in an environment that says which pins it was made with."""


def own_environment(folder: Path, pins: Sequence[Path], installs: Sequence[Sequence[str]]) -> Path:
    """Its Python. It is made if it is not there, or was made with other pins; who wants it at the same time waits.
    installs: what each call of pip is told to install. Raises CalledProcessError."""
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python, done = folder / "bin/python", folder / DONE
        wanted = "".join(file.read_text(encoding="utf-8") for file in pins)
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pinned = [word for file in pins for word in ("-c", str(file))]
            # Most of what is installed is never imported, and Python compiles what is.
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
            for packages in installs:
                subprocess.run([*pip, *pinned, *packages], check=True)
            done.write_text(wanted, encoding="utf-8")
        return python
