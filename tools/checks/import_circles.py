"""Bans import cycles in core: modules that import each other cannot be read or changed one at a time."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools.checks.sources import imports, python_sources


def import_circles(root: Path) -> list[str]:
    """Cycles of core modules that import each other, one finding per cycle. Imports inside functions and for type
    checkers count too."""
    graph = _graph(root)
    findings: list[str] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]
            findings.append(f"{' -> '.join(circle)}: move the shared name to a module below both, or merge them")
            graph[circle[0]].remove(circle[1])
        else:
            return findings


def _graph(root: Path) -> dict[str, list[str]]:
    """The modules that each module imports."""
    sources = {_module(source.name): source for source in python_sources(root, "core/tessera/**/*.py")}
    graph: dict[str, list[str]] = {}
    for module, source in sources.items():
        targets = {entry.target for entry in imports(source.tree)}
        # A name that is not a module is a member of one.
        found = {target if target in sources else target.rpartition(".")[0] for target in targets}
        graph[module] = sorted((found & sources.keys()) - {module})
    return graph


def _module(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")
