"""Writes docs/plugins/reference.md from the contract's own docstrings: `python -m tools.contract_reference`. A test
keeps the two alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tessera.platform import API_LEVELS
from tools.contract_names import Name, names
from tools.public_surface import SPECIAL, call_of, reference_ops, signature, spec_of

PAGE = Path(__file__).parents[1] / "docs" / "plugins" / "reference.md"

_HEAD = """\
# The contract

Written by `python -m tools.contract_reference` from the docstrings of core: all that a platform package is written
against, by facet. A member is **required** where it is abstract; every other has the default that its text states.
What `tessera.ops` defines is imported from `tessera.platform`. `Tensor` is the device's own. Shapes are in brackets,
with the letters of [ops](../decisions/ops.md): T tokens of a launch, R rows, S rows that sample, n and k outputs and
inputs of a product, H and Hk heads of queries and of keys, D elements of a head. Memory is in bytes, times are in
seconds. What a person can mend is raised as PlatformError, with one line that says what to do; any other error counts
as a bug of who raised it.

[Hooks](hooks.md) says how a plugin is found, [failures](failures.md) what a person sees where it is not right, and
[levels](../decisions/levels.md) how the contract changes. [surface.txt](surface.txt) is the same without words, for
comparing.
"""
_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "platform": "The platform, its devices, and hooks",
        "attention": "Attention and caches",
        "quantization": "Quantization",
        "launch": "Steps and launches",
        "collectives": "Collectives",
        "graph": "Capture and replay",
        "runner": "Runners and models",
        "testing": "What tests are written with",
    }
)


def reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_levels()]
    found = names()
    for facet in API_LEVELS:
        mine = [name for name in found if name.facet == facet]
        ops = [op for op in reference_ops() if f"ops.{op.group}" == facet]
        if not mine and not ops:
            continue
        parts.append(
            f"## {_TITLES.get(facet, f'Ops of the group {facet[4:]}')}\n\nFacet `{facet}`, level {API_LEVELS[facet]}.\n"
        )
        if ops:
            parts += ["| op | spec | hot call | mutates | parts |", "|---|---|---|---|---|"]
            for op in ops:
                cells = (
                    f"`{op.name}`",
                    f"`{spec_of(op).__name__}`",
                    f"`{call_of(op)}`",
                    *map(", ".join, (op.mutates, op.parts)),
                )
                parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
            parts.append("")
        for name in mine:
            parts += _described(name)
    return "\n".join(parts).rstrip() + "\n"


def _levels() -> Iterator[str]:
    yield "| facet or group of ops | level |\n|---|---|"
    for facet, level in API_LEVELS.items():
        yield f"| `{facet}` | {level} |"
    yield ""


def _described(name: Name) -> Iterator[str]:
    node = name.node
    yield f"### {name.name}\n"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"`class {node.name}({bases})`, `{name.module}`\n" if bases else f"`class {node.name}`, `{name.module}`\n"
        yield from _text(name.doc)
        yield from _fields(node)
        yield from _members(node)
    elif isinstance(node, ast.FunctionDef):
        yield f"`{signature(node)}`, `{name.module}`\n"
        yield from _text(name.doc)
    else:
        yield f"```python\n{ast.unparse(node)}\n```\n"
        yield from _text(name.doc)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    lines = [
        ast.unparse(member)
        for member in node.body
        if isinstance(member, ast.Assign | ast.AnnAssign) and not ast.unparse(member).startswith("_")
    ]
    if lines:
        yield "```python\n" + "\n".join(lines) + "\n```\n"


def _members(node: ast.ClassDef) -> Iterator[str]:
    shown = False
    for member in node.body:
        if not isinstance(member, ast.FunctionDef) or (member.name.startswith("_") and member.name not in SPECIAL):
            continue
        decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
        marks = [
            word for word, mark in (("required", "abstractmethod"), ("property", "property")) if mark in decorators
        ]
        doc = " ".join((ast.get_docstring(member) or "").split())
        yield f"- `{signature(member)}`{''.join(f' **{mark}**' for mark in marks)}" + (f"  \n  {doc}" if doc else "")
        shown = True
    if shown:
        yield ""


def _text(doc: str) -> Iterator[str]:
    if doc:
        yield f"{doc}\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(PAGE)
