"""Builds the documentation into build/site, and checks it: `python -m tools.site`. MkDocs is installed into
build/mkdocs, in the versions of constraints.txt beside this file. Neither the site nor its search loads anything from
elsewhere; pages can be opened as files, and the search needs a server of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.own_environment import own_environment
from tools.site.check import Site

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = ROOT / "build/mkdocs"
SITE = ROOT / "build/site"
PINS = (ROOT / "constraints.txt", HERE / "constraints.txt")
PACKAGES = ("mkdocs-material",)


def build() -> None:
    """Raises CalledProcessError."""
    python = own_environment(ENVIRONMENT, PINS, (PACKAGES,))
    # The variable silences what mkdocs-material says of its successor, which reads the same mkdocs.yml.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([str(python), "-m", "mkdocs", "build", "--quiet"], cwd=ROOT, env=environment, check=True)


def main() -> int:
    try:
        build()
    except subprocess.CalledProcessError as error:
        return error.returncode
    site = Site(SITE)
    problems = [*site.broken_links(), *site.loaded_from_elsewhere(), *site.read_otherwise(ROOT)]
    print(*problems, sep="\n")
    where = SITE.relative_to(ROOT)
    print(f"{len(site.pages)} pages in {where}; to read them: python -m http.server --directory {where}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
