"""Sets the version of core, of all platform packages, and of what deploys them: `python -m tools.version 0.1.0`.
Without a version it prints the one that there is. The changelog, the commit and the tag are for whoever releases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parents[1]
SOURCE = "core/tessera/_version.py"
CHART = "deploy/helm/tessera/Chart.yaml"
PLACES = (
    SOURCE,
    CHART,
    "pyproject.toml",
    "platforms/*/pyproject.toml",
    "tests/fakechip/pyproject.toml",
    "deploy/docker/Dockerfile",
    "deploy/docker/docker-bake.json",
    "deploy/kserve/serving-runtime.yaml",
    "docs/docker.md",
    "docs/kubernetes.md",
)
"""All files that name it."""
RECORDS = ("benchmarks/results/", "CHANGELOG.md")
"""What says with which version something was measured or changed."""


def current(root: Path) -> str:
    """The version of core."""
    (version,) = re.findall(r'__version__ = "(.+)"', (root / SOURCE).read_text(encoding="utf-8"))
    return str(version)


def semantic(version: str) -> str:
    """In the spelling of Semantic Versioning, which Helm wants: 0.3.0.dev1 is 0.3.0-dev.1. Raises InvalidVersion."""
    parsed = Version(version)
    suffixes = [*(parsed.pre or ()), *(() if parsed.dev is None else ("dev", parsed.dev))]
    base = ".".join(str(part) for part in (*parsed.release, 0, 0)[:3])
    return "-".join([base, *([".".join(str(part) for part in suffixes)] if suffixes else [])])


def set_version(root: Path, version: str) -> list[Path]:
    """The files that changed. Raises InvalidVersion."""
    old, chart = current(root), semantic(version)
    changed = []
    for path in sorted(path for place in PLACES for path in root.glob(place)):
        text = path.read_text(encoding="utf-8")
        new = _replaced(text, old, version)
        if path == root / CHART:
            new = _replaced(new, semantic(old), chart)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def _replaced(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.]*\d)", new, text)


def elsewhere(root: Path) -> list[str]:
    """Files of git that name the version and are neither PLACES nor RECORDS."""
    command = ["git", "grep", "--files-with-matches", "--fixed-strings", current(root)]
    named = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.split()
    places = {path.relative_to(root).as_posix() for place in PLACES for path in root.glob(place)}
    return [name for name in named if name not in places and not name.startswith(RECORDS)]


def main() -> int:
    if len(sys.argv) == 1:
        print(current(ROOT))
        return 0
    try:
        changed = set_version(ROOT, str(Version(sys.argv[1])))
    except InvalidVersion:
        print(f"{sys.argv[1]!r} is no version, such as 0.1.0 or 0.2.0.dev0.")
        return 2
    print(*(path.relative_to(ROOT) for path in changed), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
