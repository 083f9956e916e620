"""The names that plugins are written against, read from core's source: by facet, in file order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

CORE = Path(__file__).parents[1] / "core"
Definition = ast.ClassDef | ast.FunctionDef | ast.Assign | ast.AnnAssign

FACETS: Mapping[str, str] = MappingProxyType(
    {
        "tessera.arrays": "platform",
        "tessera.errors": "platform",
        "tessera.hookspecs": "platform",
        "tessera.plugins.registry": "platform",
        "tessera.platform.hooks": "platform",
        "tessera.platform.platform": "platform",
        "tessera.platform.device": "platform",
        "tessera.platform.artifacts": "platform",
        "tessera.platform.quantization": "quantization",
        "tessera.platform.attention": "attention",
        "tessera.platform.latent": "attention",
        "tessera.platform.sparse_attention": "attention",
        "tessera.platform.selective_scan": "attention",
        "tessera.platform.wkv": "attention",
        "tessera.platform.masked": "attention",
        "tessera.platform.launch": "launch",
        "tessera.platform.shapes": "launch",
        "tessera.platform.collectives": "collectives",
        "tessera.platform.graph": "graph",
        "tessera.platform.compiled": "graph",
        "tessera.platform.compiled_platform": "platform",
        "tessera.platform.probing": "platform",
        "tessera.platform.model": "runner",
        "tessera.platform.loaded_model": "runner",
        "tessera.platform.lora": "runner",
        "tessera.platform.runner": "runner",
        "tessera.platform.drafts": "runner",
        "tessera.platform.feature": "runner",
        "tessera.platform.explain": "runner",
        "tessera.platform.transfer": "runner",
        "tessera.kv_transfer_params": "runner",
        "tessera.step": "runner",
        "tessera.request": "runner",
        "tessera.platform.ops": "ops.core",
        "tessera.platform.vendor": "ops.core",
    }
)
"""Modules by dotted name, and the facet or op group their names belong to. The modules of op groups follow these, with
the names in their __all__."""

PARTLY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tessera.arrays": ("Array",),
        "tessera.platform.artifacts": ("Artifacts",),
        "tessera.platform.compiled": ("CompiledGraphs",),
        "tessera.platform.drafts": ("write_drafts", "sampled_at", "step_output"),
        "tessera.platform.loaded_model": ("MemoryBudget", "CacheNeeds", "LoadedModel"),
        "tessera.platform.masked": ("MaskedAttention", "MaskedPlan", "Masks", "SdpaAttention", "in_order"),
        "tessera.platform.vendor": ("import_vendor", "vendor_op", "vendor_object", "rotary_angles", "VendorKernel"),
        "tessera.errors": (
            "TesseraError",
            "PlatformError",
            "ModelError",
            "MemoryBudgetError",
            "ConfigError",
            "RefusedError",
            "RequestError",
        ),
        "tessera.hookspecs": ("RegisterRoutes", "Hooks"),
        "tessera.plugins.registry": ("Table", "Registry"),
        "tessera.request": ("Request",),
    }
)
"""The names that plugins see, for modules that also contain others."""

TESTING = ("tessera.testing", "tessera.testing.conformance")
OPS = "tessera.ops"


@dataclass(frozen=True)
class Name:
    """One public name."""

    facet: str
    module: str
    name: str
    node: Definition
    doc: str  # its docstring, or the string below an assignment
    text: str  # of its module

    def source_lines(self, member: ast.stmt) -> list[str]:
        """The lines of a member of this class, and those of the comments above it."""
        lines = self.text.splitlines()
        start = member.lineno - 1
        while lines[start - 1].lstrip().startswith("#"):
            start -= 1
        return [line.removeprefix(" " * member.col_offset) for line in lines[start : member.end_lineno]]


def names() -> list[Name]:
    """All public names."""
    found = [name for module, facet in FACETS.items() for name in _of_module(module, facet)]
    for module in _groups():
        known = _listed(module)
        found += [one for one in _definitions(module, _facet(module)) if one.name in known]
    for package in TESTING:
        for name, module in _exports(package).items():
            found += [one for one in _definitions(module, "testing") if one.name == name]
    return found


def left_out() -> list[str]:
    """Names that tessera.platform exports but no facet contains."""
    known = {name.name for name in names()}
    return sorted(name for name in _exports("tessera.platform") if name not in known)


def _of_module(module: str, facet: str) -> Iterator[Name]:
    exported = _exports("tessera.platform") if module == "tessera.step" else None
    for one in _definitions(module, facet):
        if one.name in PARTLY.get(module, (one.name,)) and (exported is None or one.name in exported):
            yield one


def _groups() -> list[str]:
    """The modules of ops, in the order of the table."""
    return [f"{OPS}.{ast.unparse(module)}" for module in _assigned(OPS, "GROUPS").elts]


def _facet(module: str) -> str:
    """The facet of a group's ops, taken from the rows of the ops."""
    rows = _assigned(module, "OPS").elts
    groups = {ast.literal_eval(row.args[1]) for row in rows if isinstance(row, ast.Call)}
    assert len(groups) == 1, f"the ops of {module} are of {sorted(groups)}"
    return f"ops.{groups.pop()}"


def _listed(module: str) -> list[str]:
    """The names of a module's __all__."""
    return [ast.literal_eval(name) for name in _assigned(module, "__all__").elts]


def _assigned(module: str, name: str) -> ast.List | ast.Tuple:
    """The list or tuple that a module assigns to a name."""
    return next(
        node.value
        for node in _parse(module).body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == name
        and isinstance(node.value, ast.List | ast.Tuple)
    )


def _exports(package: str) -> dict[str, str]:
    """The names in a package's __all__, each with the module that defines it."""
    tree = _parse(package)
    sources = {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    return {name: _source(sources[name], name) for name in _listed(package)}


def _source(module: str, name: str) -> str:
    """The module that defines a name, following packages that re-export it."""
    return (
        _exports(module).get(name, module) if _path(module).name == "__init__.py" and module.count(".") > 1 else module
    )


def _definitions(module: str, facet: str) -> Iterator[Name]:
    text = _text(module)
    body = [
        statement
        for node in ast.parse(text).body
        # Definitions for type checkers are also what readers should see.
        for statement in (node.body if isinstance(node, ast.If) else [node])
    ]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name, doc = node.name, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            name, doc = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target), _below(after)
        else:
            continue
        if not name.startswith("_"):
            yield Name(facet, module, name, node, doc, text)


def _below(node: ast.stmt | None) -> str:
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return " ".join(ast.literal_eval(node.value).split()) if said and isinstance(node, ast.Expr) else ""


def _parse(module: str) -> ast.Module:
    return ast.parse(_text(module))


def _text(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def _path(module: str) -> Path:
    path = CORE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
