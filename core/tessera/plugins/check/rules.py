"""The rules of `tessera plugin check`: what a plugin may import and may do to core, members and hooks that core will
never call, the metadata in pyproject.toml, and what importing the module does (in a child process)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import tessera.platform
from tessera.hookspecs import Hooks
from tessera.plugins.check.package import Finding, Package, SourceFile
from tessera.plugins.contract import CONTRACTS, nearest_member, replacement_of, unknown_take
from tessera.plugins.levels import API, levels_problem
from tessera.plugins.loading import no_such_hook
from tessera.plugins.selection import end

_UNSAFE = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"})
_BUILTINS = frozenset({"eval", "exec"})
_SETTERS = frozenset({"setattr", "delattr"})
_PATCHERS = ("unittest.mock.patch", "mock.patch")
_USE = "import what tessera.platform offers, or ask for what it lacks"
_LEAVE = "core's objects are not a plugin's to change; override what the contract has for it"
_PLAIN = "keep plain data (JSON, safetensors) and plain code"


def foreign_imports(source: SourceFile) -> Iterator[Finding]:
    """Imports of core's modules other than the contracts."""
    for node in source.nodes():
        for target in _imported(node, source):
            if _is_of(target, "tessera") and not _allowed(target, source.is_test):
                yield source.at(node, f"imports {target}", _USE)


def _allowed(target: str, is_test: bool) -> bool:
    return _is_of(target, "tessera.platform") or (is_test and _is_of(target, "tessera.testing"))


def _imported(node: ast.AST, source: SourceFile) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        named = ast.unparse(node.func).rpartition(".")[2]
        if named in ("import_module", "__import__"):
            return [str(node.args[0].value)]
    return []


def unsafe_code(source: SourceFile) -> Iterator[Finding]:
    """Code that may execute arbitrary input."""
    for node in source.nodes():
        for target in _imported(node, source):
            if target.partition(".")[0] in _UNSAFE:
                yield source.at(node, f"imports {target.partition('.')[0]}", _PLAIN)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS and node.func.id not in source.names:
                yield source.at(node, f"calls {node.func.id}", _PLAIN)
            elif source.full_name(node.func) == "torch.load":
                yield source.at(node, "calls torch.load", _PLAIN)


def changed_core(source: SourceFile) -> Iterator[Finding]:
    """Assignments to attributes and items of core's objects, patches, and writes to sys.modules."""
    for node in source.nodes():
        if isinstance(node, ast.Assign | ast.Delete):
            targets = [part for target in node.targets for part in _parts(target)]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            targets = []
        for target in targets:
            yield from _written(source, target)
        if isinstance(node, ast.Call):
            yield from _called(source, node)


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _parts(element)]
    return [target]


def _written(source: SourceFile, target: ast.expr) -> Iterator[Finding]:
    if not isinstance(target, ast.Attribute | ast.Subscript):
        return
    owner = source.full_name(target.value)
    if owner == "sys.modules":
        yield source.at(target, "writes to sys.modules", _LEAVE)
    elif owner is not None and _is_of(owner, "tessera"):
        yield source.at(target, f"assigns {ast.unparse(target)}, which is core's", _LEAVE)


def _called(source: SourceFile, call: ast.Call) -> Iterator[Finding]:
    name, first = ast.unparse(call.func), call.args[0] if call.args else None
    full = source.full_name(call.func) or name
    if full.startswith("sys.modules."):
        if full.rpartition(".")[2] in ("update", "pop", "setdefault", "clear", "__setitem__"):
            yield source.at(call, "writes to sys.modules", _LEAVE)
        return
    patches = full.startswith(_PATCHERS) or name.endswith("monkeypatch.setattr")
    if first is None or not (name in _SETTERS or patches):
        return
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    target = text if patches and text else source.full_name(first)
    if target is not None and _is_of(target, "tessera"):
        yield source.at(call, f"{'patches' if patches else name + ' on'} {target}, which is core's", _LEAVE)


def _is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


_PREFIX = "tessera.platform."


def contracts_of(package: Package) -> Mapping[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]]:
    """Classes of the package by module and name, each with the contract class that it derives from."""
    classes = {
        (source.module, node.name): (source, node)
        for source in package.sources
        if not source.is_test
        for node in source.nodes()
        if isinstance(node, ast.ClassDef)
    }
    found: dict[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]] = {}
    for _ in classes:  # a base may be found after the classes that derive from it
        known = len(found)
        for key, (source, node) in classes.items():
            base = None if key in found else _base(source, node, found)
            if base is not None:
                found[key] = source, node, base
        if len(found) == known:
            break
    return found


def _base(
    source: SourceFile, node: ast.ClassDef, classes: Mapping[tuple[str, str], tuple[SourceFile, ast.ClassDef, type]]
) -> type | None:
    for expression in node.bases:
        plain = expression.value if isinstance(expression, ast.Subscript) else expression
        full = source.full_name(plain) or f"{source.module}.{ast.unparse(plain)}"
        if full.startswith(_PREFIX):
            cls = getattr(tessera.platform, full.removeprefix(_PREFIX), None)
            if isinstance(cls, type) and any(issubclass(cls, contract) for contract in CONTRACTS):
                return cls
        module, _, name = full.rpartition(".")
        if (module, name) in classes:
            return classes[module, name][2]
    return None


def dead_members(package: Package) -> Iterator[Finding]:
    for source, node, cls in contracts_of(package).values():
        known = {name for one in cls.__mro__ for name in (*vars(one), *vars(one).get("__annotations__", ()))}
        for statement in node.body:
            for name in _defined(statement):
                finding = None if name.startswith("_") else _dead(name, statement, cls, known)
                if finding is not None:
                    yield source.at(statement, f"{node.name} defines {name}, {finding[0]}", finding[1])


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _dead(name: str, statement: ast.stmt, cls: type, members: set[str]) -> tuple[str, str] | None:
    for contract in (one for one in CONTRACTS if issubclass(cls, one)):
        replacement = replacement_of(name, contract)
        if replacement is not None:
            return f"which {contract.__name__} no longer has", f"{replacement} replaced it"
    near = nearest_member(name, members, method=isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef))
    if near is None:
        return None
    return (
        f"which {cls.__name__} does not have",
        f"did it mean {near}?" if near else f"call it _{name} if it is your own",
    )


def unknown_takes(package: Package) -> Iterator[Finding]:
    """What a model runner says that it takes and no runner can."""
    for source, node, cls in contracts_of(package).values():
        for statement in node.body if issubclass(cls, tessera.platform.ModelRunner) else ():
            if "takes" not in _defined(statement):
                continue
            named = [part.value for part in ast.walk(statement) if isinstance(part, ast.Constant)]
            for name in (name for name in named if name not in tessera.platform.RUNNER_TAKES):
                problem, _, hint = unknown_take(str(name)).partition("; ")
                yield source.at(statement, f"{node.name} {problem}", hint)


def unknown_hooks(package: Package) -> Iterator[Finding]:
    hooks = {name for name in vars(Hooks) if not name.startswith("_")}
    entries = {value.partition(":")[0] for value in package.entries.values()}
    for source in package.sources:
        for node in source.tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
            marked = any(source.full_name(mark) == "tessera.platform.hookimpl" for mark in marks)
            if marked and node.name not in hooks:
                what, _, todo = no_such_hook(node.name).partition("; ")
                yield source.at(node, what.removeprefix("it "), todo)
            elif not marked and node.name in hooks and source.module in entries:
                yield source.at(node, f"has the hook {node.name}, which core does not see", "mark it with hookimpl")


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


SECONDS = 10.0
IMPORT_SECONDS = 1.0
CHILD = "tessera.plugins.check.child"
_DEVICE_LIBRARIES = frozenset({"torch", "ctypes", "subprocess"})
_HOOK = "it implements a hook"  # an unknown hook, already reported with its line by unknown_hooks
_LATER = "do it in what the manifest names by dotted path, or in enter_process"


class Seen(msgspec.Struct):
    """file, line: in the plugin's own code."""

    file: str
    line: int
    what: str


class Told(msgspec.Struct):
    """A manifest as plain data."""

    name: str
    probe: str
    levels: dict[str, int] = {}


class ManifestReport(msgspec.Struct):
    """The child's output. error: why the module or its hook cannot be used."""

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
            yield from _levels(source, told)
            yield from _opened_early(package, source, told)


def _levels(source: SourceFile, told: Told) -> Iterator[Finding]:
    problem = levels_problem(told.levels, API)
    if problem is not None:
        what, _, todo = problem.partition("; ")
        yield Finding(source.file, 0, f"the manifest of {told.name}: {what}", todo or "name a level that core has")


def _opened_early(package: Package, source: SourceFile, told: Told) -> Iterator[Finding]:
    """Device access outside the probe. The probe runs in a child process, but its module may be imported elsewhere."""
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
    """Calls outside functions."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _report(package: Package, module: str) -> ManifestReport:
    # -P: the child must not import modules from the user's working directory.
    command = [sys.executable, "-P", "-m", CHILD, str(package.folder.resolve()), module]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        output, log = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return ManifestReport(error=f"importing it did not end within {SECONDS:g} s")
    finally:
        end(child)
    try:
        return msgspec.json.decode(output, type=ManifestReport)
    except msgspec.MsgspecError:
        last = (log.decode("utf-8", errors="replace").strip().splitlines() or ["no word"])[-1]
        return ManifestReport(error=f"importing it ended the process: {last[:160]}")


def relative_name(path: str, folder: Path) -> str | None:
    """A file's name relative to the package's folder; None if it is elsewhere."""
    try:
        return Path(path).resolve().relative_to(folder).as_posix()
    except ValueError:
        return None


_OF_A_FILE = (foreign_imports, unsafe_code, changed_core)
_OF_THE_PACKAGE = (metadata, dead_members, unknown_takes, unknown_hooks, manifest)


def check(package: Package) -> list[Finding]:
    """All violations of the contract, without duplicates, sorted by file and line."""
    found = set(package.broken)
    for source in package.sources:
        for rule in _OF_A_FILE:
            found.update(rule(source))
    for look in _OF_THE_PACKAGE:
        found.update(look(package))
    return sorted(found)
