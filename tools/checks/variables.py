"""Every TESSERA_ name in code and pages is a declared environment variable: core's and the platform packages' in their
environment.py, so that `serve` and `doctor` know it; those for working on the tree here."""

from __future__ import annotations

import re
from pathlib import Path

from tools.checks.places import files_of, lines_of

DEVELOPMENT = frozenset({"TESSERA_REQUIRE_ALL", "TESSERA_TRACE_FOLDER", "TESSERA_GPU_PART"})
"""Of tools and tests."""
TEXT = frozenset({"TESSERA_CONTINUES_HERE"})
"""No variables, but the same spelling."""

_NAME = re.compile(r"(?<![A-Z0-9_])TESSERA_[A-Z][A-Z0-9_]*")
_DECLARING = re.compile(r"(core/tessera/config|platforms/\w+/tessera_\w+)/environment\.py")


def undeclared_variables(root: Path) -> list[str]:
    """Lines with a name that is declared nowhere. Tests may use such names."""
    where = {path: path.relative_to(root).as_posix() for path in files_of(root)}
    declaring = [path for path, name in where.items() if _DECLARING.fullmatch(name)]
    declared = {found for path in declaring for found in _NAME.findall(path.read_text(encoding="utf-8"))}
    declared |= DEVELOPMENT | TEXT
    return [
        f"{name}:{number}: {found} is declared in no environment.py"
        for path, name in where.items()
        if "tests" not in Path(name).parts and path != Path(__file__)
        for number, line in enumerate(lines_of(path), start=1)
        for found in _NAME.findall(line)
        if found not in declared
    ]
