"""How much there is to read: the files that one request passes from HTTP to SSE; the largest files and functions."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.checks.sources import python_sources

ROOT = Path(__file__).parents[1]
PATH_OF_A_REQUEST = ROOT / "tools/request_path.txt"


@dataclass(frozen=True)
class Step:
    """A file of the path, and what happens there."""

    file: str
    phrase: str


@dataclass(frozen=True)
class Sized:
    """A file or function, its physical lines, blank ones and comments included."""

    lines: int
    name: str


def read_path(table: Path) -> list[Step]:
    rows = [line for line in table.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [Step(file, phrase.strip()) for file, _, phrase in (row.partition(":") for row in rows)]


def missing_files(steps: Sequence[Step], root: Path) -> list[str]:
    return [step.file for step in steps if not (root / step.file).is_file()]


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def files_by_size(root: Path) -> list[Sized]:
    """Core's Python files, the largest first."""
    sizes = [Sized(len(source.text.splitlines()), source.name) for source in python_sources(root, "core/**/*.py")]
    return sorted(sizes, key=lambda sized: (-sized.lines, sized.name))


def functions_by_size(root: Path) -> list[Sized]:
    """Core's functions and methods, decorators included, the largest first."""
    sizes = [
        Sized(lines, f"{source.name}:{line} {name}")
        for source in python_sources(root, "core/**/*.py")
        for name, line, lines in _functions(source.tree, "")
    ]
    return sorted(sizes, key=lambda sized: (-sized.lines, sized.name))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int, int]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            yield f"{prefix}{child.name}", first, (child.end_lineno or first) - first + 1
        yield from _functions(child, inner)


def print_request(steps: Sequence[Step], root: Path) -> None:
    present = [step for step in steps if (root / step.file).is_file()]
    width = max(len(step.file) for step in steps)
    total = 0
    print("One request, from HTTP to SSE")
    for step in present:
        lines = count_lines(root / step.file)
        total += lines
        print(f"{lines:6}  {step.file:<{width}}  {step.phrase}")
    print(f"{total:6}  lines in {len(present)} files")


def print_largest(title: str, sized: Sequence[Sized], top: int) -> None:
    print(f"\nThe largest {min(top, len(sized))} of core's {len(sized)} {title}")
    for entry in sized[:top]:
        print(f"{entry.lines:6}  {entry.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=10, help="how many of the largest files and functions to print")
    arguments = parser.parse_args()
    steps = read_path(PATH_OF_A_REQUEST)
    print_request(steps, ROOT)
    missing = missing_files(steps, ROOT)
    for file in missing:
        print(f"        {file} does not exist: correct tools/request_path.txt")
    print_largest("files", files_by_size(ROOT), arguments.top)
    print_largest("functions", functions_by_size(ROOT), arguments.top)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
