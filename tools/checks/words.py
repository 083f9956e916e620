"""The field's words: names that say what a thing is, each class name once, each field with its own comment.

`python -m tools.checks.words [FOLDER ...]` prints what the folders, or all of them, have against it, and the counts.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.checks.class_names import class_names
from tools.checks.field_lines import field_lines
from tools.checks.field_names import field_names
from tools.checks.sources import python_sources

_TREES = ("core/tessera/**/*.py", "platforms/*/tessera_*/**/*.py", "tools/**/*.py", "benchmarks/**/*.py")


@dataclass(frozen=True, order=True)
class Offence:
    rule: str
    file: str
    line: int
    # The name, class or class with fields.
    subject: str
    text: str


def words(root: Path) -> list[str]:
    """What the tree has against the field's words."""
    return [_line(offence) for offence in offences(root)]


def offences(root: Path) -> list[Offence]:
    return sorted(_offences(root))


def _offences(root: Path) -> Iterator[Offence]:
    sources = list(python_sources(root, *_TREES))
    for source in sources:
        for rule, check in (("names", field_names), ("fields", field_lines)):
            for line, subject, text in check(source):
                yield Offence(rule, source.name, line, subject, text)
    for source, line, subject, text in class_names(sources):
        yield Offence("classes", source.name, line, subject, text)


def _line(offence: Offence) -> str:
    return f"{offence.file}:{offence.line}: {offence.text}"


def main() -> int:
    """Prints the offences of the folders named, or of all, and how often each name occurs in them."""
    folders = sys.argv[1:] or [""]
    reported = [
        offence
        for offence in offences(Path(__file__).parents[2])
        if any(PurePosixPath(offence.file).is_relative_to(folder) for folder in folders)
    ]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for offence in reported:
        print(f"{offence.rule:8} {_line(offence)}")
        counts[offence.rule][offence.subject.strip("_").lower()] += 1
    for rule, subjects in counts.items():
        print(f"\n{rule}: {subjects.total()}")
        print(", ".join(f"{name} {count}" for name, count in subjects.most_common()))
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main())
