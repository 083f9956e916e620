"""What importing the plugin's module does, and what its manifests say: seen in a child process with a time limit."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tessera.plugins.api import API
from tessera.plugins.check.members import facets_of
from tessera.plugins.check.package import Finding, Package, SourceFile
from tessera.plugins.children import end
from tessera.plugins.levels import levels_problem

SECONDS = 10.0
IMPORT_SECONDS = 1.0
CHILD = "tessera.plugins.check.child"
_DEVICE_LIBRARIES = frozenset({"torch", "ctypes", "subprocess"})
_HOOK = "it implements a hook"  # one that core does not have, which has been found by its line
_LATER = "do it in what the manifest names by dotted path, or in enter_process"


class Seen(msgspec.Struct):
    """file, line: of the plugin's own code."""

    file: str
    line: int
    what: str


class Told(msgspec.Struct):
    """A manifest as data."""

    name: str
    probe: str
    levels: dict[str, int] = {}


class Report(msgspec.Struct):
    """What the child writes. error: why the module or its hook gives nothing."""

    seconds: float = 0.0
    seen: list[Seen] = []
    manifests: list[Told] = []
    error: str = ""


def manifest(package: Package) -> Iterator[Finding]:
    for value in package.entries.values():
        module = value.partition(":")[0]
        source = package.source_of(module)
        if source is None:
            continue
        report = _report(package, module)
        for seen in report.seen:
            yield Finding(seen.file, seen.line, f"{seen.what} as the manifest is imported", _LATER)
        if report.error and not report.error.startswith(_HOOK):
            yield Finding(source.file, 0, report.error, "repair it; nothing of the plugin is used before")
        if report.seconds > IMPORT_SECONDS:
            what = f"takes {report.seconds:.1f} s to import, where {IMPORT_SECONDS:g} s is the most"
            yield Finding(source.file, 0, what, _LATER)
        for told in report.manifests:
            yield from _levels(package, source, told)
            yield from _opened_early(package, source, told)


def _levels(package: Package, source: SourceFile, told: Told) -> Iterator[Finding]:
    problem = levels_problem(told.levels, API)
    if problem is not None:
        what, _, todo = problem.partition("; ")
        yield Finding(source.file, 0, f"the manifest of {told.name}: {what}", todo or "name a level that core has")
    missing = sorted((facets_of(package) | {"platform"}) - set(told.levels))
    if missing:
        what = f"the manifest of {told.name} names no level of {', '.join(missing)}"
        yield Finding(source.file, 0, what, "add them to levels: it is what tells core how to run the plugin")


def _opened_early(package: Package, source: SourceFile, told: Told) -> Iterator[Finding]:
    """A probe is asked in a child process; the module that holds it may be imported elsewhere too."""
    module, _, function = told.probe.partition(":")
    holder = package.source_of(module)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and source.full_name(node.func) == f"{module}.{function}":
            yield source.at(node, "calls the probe where the manifest is made", "name it by its dotted path alone")
    for node in [] if holder is None else _run_at_import(holder.tree):
        assert holder is not None
        root = (holder.full_name(node.func) or "").partition(".")[0]
        if root in _DEVICE_LIBRARIES or ast.unparse(node.func) == function:
            yield holder.at(
                node, f"calls {ast.unparse(node.func)} as the probe's module is imported", "call it in the probe"
            )


def _run_at_import(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls outside of functions."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _report(package: Package, module: str) -> Report:
    # -P: the child must not find modules in whatever folder the user stands in.
    command = [sys.executable, "-P", "-m", CHILD, str(package.folder.resolve()), module]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        output, log = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return Report(error=f"importing it did not end within {SECONDS:g} s")
    finally:
        end(child)
    try:
        return msgspec.json.decode(output, type=Report)
    except msgspec.MsgspecError:
        last = (log.decode("utf-8", errors="replace").strip().splitlines() or ["no word"])[-1]
        return Report(error=f"importing it ended the process: {last[:160]}")


def shown(path: str, folder: Path) -> str | None:
    """A file's name below the package's folder; None for one that is elsewhere."""
    try:
        return Path(path).resolve().relative_to(folder).as_posix()
    except ValueError:
        return None
