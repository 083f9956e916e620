"""Generates the table in docs/decisions/ops.md from the declarations in tessera.ops: `python -m tools.ops_table`. A
test checks that it is up to date."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tessera.platform import Op
from tools.public_surface import hot_call, reference_ops, spec_of

PAGE = Path(__file__).parents[1] / "docs" / "decisions" / "ops.md"
COLUMNS = ("Op", "Group", "Spec", "Arguments", "Result", "`out`", "Mutates", "Parts")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def table() -> str:
    """One line per op, in the order of the table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for op in reference_ops():
        out = "yes" if "out" in hot_call(op).parameters else ""
        cells = (
            f"`{op.name}`",
            op.group,
            spec_of(op).__name__,
            *shapes(op),
            out,
            *map(", ".join, (op.mutates, op.parts)),
        )
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def shapes(op: Op[Any]) -> tuple[str, str]:
    """An op's arguments and result, from the first paragraph of its definition's docstring."""
    first = inspect.getdoc(op.reference or op.compose) or ""
    arguments, arrow, result = " ".join(first.partition("\n\n")[0].split()).partition(" -> ")
    assert arrow, f"the docstring of op '{op.name}' begins with its arguments and result: x [T, n] act -> [T, n] act"
    return arguments, result


def page(text: str) -> str:
    """The page with its table replaced."""
    return _TABLE.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
