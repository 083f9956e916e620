"""Generates docs/plugins/surface.txt, everything that a plugin can touch: `python -m tools.public_surface`.

Facets at level 0 are rewritten freely. From level 1 on, a facet's part is fixed until its level rises, and the command
refuses changes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tessera.platform import API_LEVELS, BoundOps, HostDevice, MemoryFigures, Op
from tools.contract_names import Definition, names

FILE = Path(__file__).parents[1] / "docs" / "plugins" / "surface.txt"
COMMAND = "python -m tools.public_surface"
SPECIAL = ("__init__", "__call__", "__getitem__", "__iter__", "__enter__", "__exit__")
_HEAD = f"""\
All that a plugin can touch, by facet and op group: names, signatures, fields with types and defaults.
`{COMMAND}` writes it.
"""


def surface(levels: Mapping[str, int] = API_LEVELS) -> str:
    """The whole file."""
    parts: dict[str, list[str]] = defaultdict(list)
    for name in names():
        parts[name.facet] += definition_lines(name.node)
    for op in reference_ops():
        parts[f"ops.{op.group}"] += op_lines(op)
    sections = [_HEAD]
    for facet, level in levels.items():
        sections.append("\n".join([f"[{facet}] level {level}", "", *parts[facet]]).rstrip() + "\n")
    return "\n".join(sections)


def problems(recorded: str, now: str) -> list[str]:
    """Why the file cannot be rewritten: facets that changed without raising a promised level."""
    before, after = _parts(recorded), _parts(now)
    found = []
    for facet, (level, lines) in before.items():
        new_level, new_lines = after.get(facet, (0, []))  # which promises nothing
        if new_level < level:
            found.append(f"the level of {facet} was {level} and cannot fall; give it back")
        elif level > 0 and new_level == level and new_lines != lines:
            changed = next(line.strip() for line in (*new_lines, *lines) if (line in lines) != (line in new_lines))
            found.append(
                f"{facet} changed at level {level} ('{changed}'): take the change back, or raise the level and write a "
                "shim, as docs/decisions/levels.md says"
            )
    return found


def difference(recorded: str, now: str) -> str | None:
    """Why the file differs from the code, and what to do; None if it does not."""
    if recorded == now:
        return None
    fixed = problems(recorded, now)
    if fixed:
        return "; ".join(fixed)
    return f"the public surface changed: run {COMMAND}, and put the change into CHANGELOG.md"


def _parts(text: str) -> dict[str, tuple[int, list[str]]]:
    """The level and the lines of each facet."""
    found: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            facet, _, level = line[1:].partition("] level ")
            lines = []
            found[facet] = int(level), lines
        elif line:
            lines.append(line)
    return found


def definition_lines(node: Definition) -> Iterator[str]:
    """A class with its members, a function, or an assignment."""
    if isinstance(node, ast.ClassDef):
        yield from _decorators(node, "")
        bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
        yield f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
        yield from _members(node)
    elif isinstance(node, ast.FunctionDef):
        yield from _decorators(node, "")
        yield signature(node)
    else:
        yield ast.unparse(node)
    yield ""


def _members(node: ast.ClassDef) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (member.name in SPECIAL or not member.name.startswith("_")):
            yield from _decorators(member, "    ")
            yield f"    {signature(member)}"
            if member.name == "__init__":
                yield from _attributes(member)
        elif isinstance(member, ast.Assign | ast.AnnAssign) and not ast.unparse(member).startswith("_"):
            yield f"    {ast.unparse(member)}"


def _attributes(init: ast.FunctionDef) -> Iterator[str]:
    """Public attributes that __init__ sets."""
    targets = [
        target
        for node in ast.walk(init)
        for one in (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in (one.elts if isinstance(one, ast.Tuple) else [one])
    ]
    for target in targets:
        if isinstance(target, ast.Attribute) and not target.attr.startswith("_"):
            yield f"    self.{target.attr}"


def signature(node: ast.FunctionDef) -> str:
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({ast.unparse(node.args)}){result}"


def _decorators(node: ast.ClassDef | ast.FunctionDef, indent: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        yield f"{indent}@{ast.unparse(decorator)}"


def reference_ops() -> list[Op[Any]]:
    """Core's ops in the order of the table."""
    from tessera.ops import REFERENCE

    return [REFERENCE[name] for name in REFERENCE.names()]


def spec_of(op: Op[Any]) -> type:
    """The class of an op's spec."""
    assert op.sample_specs is not None, op.name
    return type(next(iter(op.sample_specs())))


def hot_call(op: Op[Any]) -> inspect.Signature:
    """The signature of an op's hot call: the arguments after the spec."""
    import torch

    from tessera.ops import REFERENCE

    if op.compose is None:
        assert op.reference is not None
        defined = inspect.signature(op.reference)
        return defined.replace(parameters=list(defined.parameters.values())[1:])
    assert op.sample_specs is not None
    ops = BoundOps(REFERENCE, HostDevice(torch, MemoryFigures(0, 0, host=True)))
    return inspect.signature(op.compose(next(iter(op.sample_specs())), ops))


def call_of(op: Op[Any]) -> str:
    """The hot call as text."""
    return str(hot_call(op)).replace("'", "").replace("torch.Tensor", "Tensor")


def op_lines(op: Op[Any]) -> Iterator[str]:
    yield f"op {op.name} {spec_of(op).__name__} {call_of(op)}"
    for field in ("mutates", "parts"):
        if getattr(op, field):
            yield f"    {field} {', '.join(getattr(op, field))}"
    yield ""


def main() -> int:
    now = surface()
    recorded = FILE.read_text(encoding="utf-8") if FILE.is_file() else ""
    fixed = problems(recorded, now)
    for problem in fixed:
        print(f"error: {problem}", file=sys.stderr)
    if fixed:
        return 1
    FILE.write_text(now, encoding="utf-8")
    print(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
