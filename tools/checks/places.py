"""Bans directories of particular machines and hosts of package registries, which are the user's choice."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

# The brackets keep this file from matching its own patterns.
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.])/wor[k]/",
        r"(?<![\w.])/roo[t]/",
        r"(?<![\w.])/hom[e]/\w",
        r"(?<![\w.])/User[s]/\w",
        r"[A-Z]:\\User[s]",
        r"(?<![\w.])/op[t]/(wheels|pypi)",
        r"\.\./share[d]",
        r"pypi[.]org",
        r"pythonhosted[.]org",
        r"download[.]pytorch[.]org",
        r"conda[.]anaconda[.]org",
    )
)
_NOT_OURS = frozenset({".git", ".venv", "build", "dist", "__pycache__"})


def named_places(root: Path) -> list[str]:
    """Lines that name a directory of a particular machine or the host of a package registry."""
    findings = []
    for path in files_of(root):
        for number, line in enumerate(lines_of(path), start=1):
            for pattern in _PLACES:
                if match := pattern.search(line):
                    findings.append(f"{path.relative_to(root).as_posix()}:{number}: names {match[0]}")
    return findings


def files_of(root: Path) -> Iterator[Path]:
    """Files that git tracks or would track; without git, everything except build artifacts."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        candidates = (root / name for name in listed.split("\0") if name)
    else:
        candidates = (path for path in root.rglob("*") if not _NOT_OURS & set(path.relative_to(root).parts))
    yield from sorted(path for path in candidates if path.is_file() and not path.is_symlink())


def lines_of(path: Path) -> list[str]:
    """None of a binary file."""
    content = path.read_bytes()
    if b"\0" in content[:8192]:
        return []
    return content.decode("utf-8", errors="replace").splitlines()
