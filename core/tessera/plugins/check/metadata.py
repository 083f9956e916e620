"""What pyproject.toml promises."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tessera.plugins.check.package import Finding, Package

FILE = "pyproject.toml"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*([^;]*)")
_TORCH = frozenset({"torch", "torchvision", "torchaudio"})


def metadata(package: Package) -> Iterator[Finding]:
    if not package.project:
        return
    for name, _ in _requirements(package.project.get("build-system", {}).get("requires")):
        if name in _TORCH:
            todo = "take it out: a build must not choose the torch that a machine runs"
            yield _finding(package, name, f"building requires {name}", todo)
    asked = list(_requirements(package.project.get("project", {}).get("dependencies")))
    for name, versions in asked:
        if name == "tessera-llm" and re.search(r"={2,3}(?!.*\*)", versions):
            yield _finding(package, name, f"pins {name}{versions}", "ask for >= the version it was written with")
    if "tessera-llm" not in [name for name, _ in asked]:
        yield Finding(FILE, 0, "does not depend on tessera-llm", "add tessera-llm>= the version it was written with")
    if not package.entries:
        yield Finding(FILE, 0, "has no entry point in the group tessera", "add [project.entry-points.tessera]")
    for name, value in package.entries.items():
        if ":" in value:
            yield _finding(package, value, f"the entry point {name} names {value}", "name the module alone")
        elif package.source_of(value) is None:
            yield _finding(package, value, f"the entry point {name} names {value}, which is not here", "name a module")


def _requirements(listed: object) -> Iterator[tuple[str, str]]:
    for text in listed if isinstance(listed, list) else ():
        match = _REQUIREMENT.match(str(text))
        if match is not None:
            yield re.sub(r"[-_.]+", "-", match[1]).lower(), match[2].strip()


def _finding(package: Package, word: str, what: str, todo: str) -> Finding:
    lines = (package.folder / FILE).read_text(encoding="utf-8").splitlines()
    line = next((number for number, text in enumerate(lines, start=1) if word in text.lower()), 0)
    return Finding(FILE, line, what, todo)
