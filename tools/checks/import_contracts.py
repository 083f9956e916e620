"""Checks the import-linter contracts in pyproject.toml on any copy of the tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def import_contracts(root: Path) -> list[str]:
    """import-linter's report from the first broken contract on; empty if all are kept."""
    paths = [str(root / "core"), *(str(path) for path in sorted((root / "platforms").glob("*/")))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "160"}
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache", "--config", str(root / "pyproject.toml")]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 0:
        return []
    report = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    start = next((index for index, line in enumerate(report) if " BROKEN" in line), 0)
    return report[start:]
