"""Checks that the control and serving code never loads torch or transformers, directly or indirectly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = ("torch", "transformers")
TORCH_FREE = (
    "cli",
    "config",
    "engine",
    "errors",
    "gguf",
    "hookspecs",
    "kvcache",
    "platform",
    "plugins",
    "request",
    "scheduler",
    "server",
    "step",
    "text",
)

# Runs in its own interpreter: refuses the blocked modules, imports the named ones, and prints one line for each import
# that failed, and one for each attempt by our own code that was swallowed.
_PROGRAM = """
import importlib, sys

root, blocked, names = sys.argv[1], set(sys.argv[2].split(",")), sys.argv[3:]
sys.path.insert(0, root)
attempts = set()


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in blocked:
            return None
        frame = sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "") if frame else ""
        if importer.partition(".")[0] == "tessera":
            attempts.add(f"{importer}: tries to import {name}")
        raise ModuleNotFoundError(f"{name} is blocked", name=name)


sys.meta_path.insert(0, Refuse())
for name in names:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}")
print(*sorted(attempts), sep="\\n")
"""


def torch_free(root: Path) -> list[str]:
    """Modules of the torch-free packages that cannot be imported while torch and transformers are blocked."""
    core = root / "core"
    names = sorted(_module_name(path.relative_to(core)) for name in TORCH_FREE for path in _module_files(core, name))
    command = [sys.executable, "-c", _PROGRAM, str(core), ",".join(BLOCKED), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    findings = [line for line in done.stdout.splitlines() if line]
    if done.returncode != 0:
        findings.append(f"the interpreter ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return findings


def _module_files(core: Path, name: str) -> list[Path]:
    package = core / "tessera" / name
    return sorted(package.rglob("*.py")) if package.is_dir() else [package.with_suffix(".py")]


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
