"""Whether the versions of torch that GPUs are served with have each function that the code calls, with the arguments
that it names: `python -m tools.torch_api`. Reads the Python files and stubs of torch's smallest wheels, which it
downloads into build/torch-api (270 MB); imports nothing of them. Methods of tensors are not looked at: their types are
unknown here."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
INTO = ROOT / "build/torch-api"
VERSIONS = ("2.9.0", "2.11.0", "2.13.0")
PLATFORMS = ("macosx_11_0_arm64", "macosx_14_0_arm64")
"""Whose wheels bring no libraries for GPUs, so that they are small. Their Python is the same."""
CODE = ("core/tessera", "platforms/triton/tessera_triton", "platforms/cuda/tessera_cuda")
BY_NAME = (
    "torch.accelerator.current_accelerator", "torch.cuda.device_count", "torch.cuda.get_device_name",
    "torch.cuda.graph", "torch.cuda.CUDAGraph", "torch.cuda.is_available", "torch.cuda.set_device",
)  # fmt: skip
"""What the code looks up by the name of the kind of device."""
OPTIONAL: dict[str, str] = {
    "torch.accelerator.Graph": "2.13",
    "torch.accelerator.get_memory_info": "2.10",
    "torch.nn.functional.ScalingType.RowWise": "2.10",
    "torch.nn.functional.scaled_mm": "2.10",
}
"""What older versions do not have, with the first that has it: the code does without, or says that it needs a newer
one (docs/platforms.md)."""
_STUBS = ("torch._C._VariableFunctions", "torch._C")
"""Where what torch itself has is declared, if it is written in C++."""
_DEEPEST = 12  # imports of imports that are followed
_DYNAMIC = ("torch.ops", "torch.library")
"""Modules whose members are made at run time."""


@dataclass(frozen=True)
class Use:
    """A dotted name of torch in the code, and, where it is called, what it is called with."""

    name: str
    place: str
    called: bool = False
    positional: int = 0
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, or of one of its overloads."""

    names: frozenset[str]
    # How many arguments may have no name; None: any number.
    positional: int | None
    any_keyword: bool

    @classmethod
    def read(cls, function: ast.FunctionDef, *, bound: bool) -> Signature:
        given = function.args
        ordered = [*given.posonlyargs, *given.args][bound:]
        names = frozenset(one.arg for one in (*ordered, *given.kwonlyargs))
        return cls(names, None if given.vararg else len(ordered), given.kwarg is not None)

    def takes(self, use: Use) -> bool:
        enough = self.positional is None or use.positional <= self.positional
        return enough and (self.any_keyword or self.names.issuperset(use.keywords))


# ---- the code


def uses(file: Path, root: Path) -> Iterator[Use]:
    """Each use of torch in a file, the longest dotted name of each."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    where = str(file.relative_to(root))
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            name = _dotted(node, names)
            if name is None or name == "torch":
                continue
            call = calls.get(id(node))
            place = f"{where}:{node.lineno}"
            if call is None:
                yield Use(name, place)
                continue
            spread = any(isinstance(one, ast.Starred) for one in call.args)
            keywords = tuple(word.arg for word in call.keywords if word.arg is not None)
            yield Use(name, place, True, 0 if spread else len(call.args), keywords)


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """A dotted name with what its first part was imported as; self.torch.x counts as torch.x."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        if node.attr == "torch":
            return ".".join(["torch", *reversed(parts)])
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in names:
        return ".".join([names[node.id], *reversed(parts)])
    return None


# ---- a version of torch


@dataclass
class Library:
    """The Python files and stubs of a wheel."""

    wheel: Path
    _scopes: dict[str, dict[str, list[ast.stmt]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._zip = ZipFile(self.wheel)
        self._files = {name for name in self._zip.namelist() if name.endswith((".py", ".pyi"))}

    def find(self, name: str) -> Sequence[Signature] | None:
        """The signatures of what has a dotted name, none if it is no function or class; None if there is none."""
        found = self._lookup(name, 0)
        if found is None:
            return None
        functions = [one for one in found if isinstance(one, ast.FunctionDef)]
        if functions:
            return [Signature.read(one, bound=False) for one in functions]
        return [
            Signature.read(method, bound=True)
            for one in found
            if isinstance(one, ast.ClassDef)
            for method in one.body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        ]

    def _lookup(self, name: str, depth: int) -> list[ast.stmt] | None:
        """The statements that define a name, none if nothing more is known of it; None if nothing does."""
        module, _, last = name.rpartition(".")
        if self._module_files(name) or (module and module.partition(".")[0] != "torch"):
            return []
        if not module or depth > _DEEPEST:
            return None
        if not self._module_files(module):
            return self._member(self._lookup(module, depth + 1) or [], last, depth)
        own = [one for one in self._scope(module).get(last, []) if not isinstance(one, ast.ImportFrom)]
        if own:
            return own
        for source in self._sources(module, last):
            found = self._lookup(source, depth + 1)
            if found is not None:
                return found
        return None

    def _sources(self, module: str, name: str) -> Iterator[str]:
        """The names by which a module may import one."""
        scope, package = self._scope(module), self._is_package(module)
        for one in (*scope.get(name, ()), *scope.get("*", ())):
            if isinstance(one, ast.ImportFrom):
                named = (alias.name for alias in one.names if alias.name == "*" or name in (alias.asname, alias.name))
                for original in named:
                    yield f"{_absolute(one, module, package=package)}.{name if original == '*' else original}"
        if module == "torch":
            yield from (f"{stubs}.{name}" for stubs in _STUBS)

    def _member(self, owner: list[ast.stmt], name: str, depth: int) -> list[ast.stmt] | None:
        """Of a class, or of one that it derives from. Of the members of a variable nothing is known."""
        if any(isinstance(one, ast.Assign | ast.AnnAssign) for one in owner):
            return []
        classes = [one for one in owner if isinstance(one, ast.ClassDef)]
        found = [member for one in classes for member in one.body if name in _defined(member)]
        for base in [] if found else [ast.unparse(base) for one in classes for base in one.bases]:
            inherited = self._lookup(f"{base if base.startswith('torch.') else f'torch.{base}'}.{name}", depth + 1)
            if inherited is not None:
                return inherited
        return found or None

    def _module_files(self, module: str) -> list[str]:
        path = module.replace(".", "/")
        stubs = f"{path}.pyi", f"{path}/__init__.pyi"
        return [name for name in (*stubs, f"{path}.py", f"{path}/__init__.py") if name in self._files]

    def _is_package(self, module: str) -> bool:
        return self._module_files(module)[0].rpartition("/")[2].startswith("__init__")

    def _scope(self, module: str) -> dict[str, list[ast.stmt]]:
        """Statements of a module by the names that they define, those under `if` and `try` too."""
        if module not in self._scopes:
            scope: dict[str, list[ast.stmt]] = {}
            for name in self._module_files(module):
                for one in _statements(ast.parse(self._zip.read(name)).body):
                    for defined in _defined(one):
                        scope.setdefault(defined, []).append(one)
            self._scopes[module] = scope
        return self._scopes[module]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for one in body:
        yield one
        if isinstance(one, ast.If | ast.Try | ast.With):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(one, name, ()))
            for handler in getattr(one, "handlers", ()):
                yield from _statements(handler.body)


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.ImportFrom | ast.Import):
        return {alias.asname or alias.name for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _absolute(statement: ast.ImportFrom, module: str, *, package: bool) -> str:
    """The module that a statement of a module imports from."""
    if not statement.level:
        return statement.module or ""
    base = module.split(".")[: len(module.split(".")) - statement.level + package]
    return ".".join([*base, *([statement.module] if statement.module else [])])


# ---- comparing


def complaints(library: Library, version: str, every_use: Sequence[Use]) -> Iterator[str]:
    """What a version lacks of what is used."""

    @cache
    def signatures(name: str) -> Sequence[Signature] | None:
        return library.find(name)

    def number(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:2]]

    for use in every_use:
        if use.name.startswith(_DYNAMIC) or (use.name in OPTIONAL and number(version) < number(OPTIONAL[use.name])):
            continue
        known = signatures(use.name)
        if known is None:
            yield f"torch {version} has no {use.name} ({use.place})"
        elif use.called and known and not any(one.takes(use) for one in known):
            words = ", ".join([*([f"{use.positional} positional"] if use.positional else []), *use.keywords])
            yield f"{use.name} of torch {version} does not take {words} ({use.place})"


def wheel_of(version: str) -> Path:
    """Downloaded unless it is there. Raises subprocess.CalledProcessError."""
    for platform in PLATFORMS:
        there = list(INTO.glob(f"torch-{version}-*.whl"))
        if there:
            return there[0]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation=cp", "--python-version=3.12", "--platform", platform]
        subprocess.run([*command, "--dest", INTO, f"torch=={version}"], check=platform == PLATFORMS[-1])
    return next(INTO.glob(f"torch-{version}-*.whl"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torch_api", description=__doc__)
    parser.add_argument("--version", action="append", help=f"of torch; may be repeated; default: {', '.join(VERSIONS)}")
    versions = parser.parse_args().version or VERSIONS
    files = sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py"))
    found = [use for file in files for use in uses(file, ROOT)] + [Use(name, "by name") for name in BY_NAME]
    wrong = 0
    for version in versions:
        lines = list(complaints(Library(wheel_of(version)), version, found))
        calls, names = sum(use.called for use in found), len({use.name for use in found})
        print(f"torch {version}: {calls} calls, {names} names, {len(lines)} wrong", *lines, sep="\n")
        wrong += len(lines)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
