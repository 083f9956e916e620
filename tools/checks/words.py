"""The field's words: names that say what a thing is, each class name once, each field with its own comment.

`python -m tools.checks.words [FOLDER ...]` prints what the folders, or all of them, have against it, and the counts.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.checks.class_names import class_names
from tools.checks.field_lines import field_lines
from tools.checks.field_names import field_names
from tools.checks.sources import python_sources
from tools.checks.words_uncovered import UNCOVERED

_TREES = ("core/tessera/**/*.py", "platforms/*/tessera_*/**/*.py", "tools/**/*.py", "benchmarks/**/*.py")


@dataclass(frozen=True, order=True)
class Offence:
    rule: str
    # Where the rule is covered or not: core/tessera/cli, platforms/cpu, tools.
    folder: str
    file: str
    line: int
    # The name, class or class with fields.
    subject: str
    text: str


def words(root: Path, uncovered: Collection[tuple[str, str]] = UNCOVERED) -> list[str]:
    """Offences in the folders that are covered, and folders that are listed as uncovered and have no offence left."""
    everywhere = offences(root)
    offending = {(offence.rule, offence.folder) for offence in everywhere}
    return [
        *(_line(offence) for offence in everywhere if (offence.rule, offence.folder) not in uncovered),
        *(
            f"tools/checks/words_uncovered.py: no offence against {rule} is left in {folder}: remove its line"
            for rule, folder in uncovered
            if (rule, folder) not in offending
        ),
    ]


def offences(root: Path) -> list[Offence]:
    return sorted(_offences(root))


def _offences(root: Path) -> Iterator[Offence]:
    sources = list(python_sources(root, *_TREES))
    for source in sources:
        for rule, check in (("names", field_names), ("fields", field_lines)):
            for line, subject, text in check(source):
                yield Offence(rule, _folder(source.name), source.name, line, subject, text)
    for source, line, subject, text in class_names(sources):
        yield Offence("classes", _folder(source.name), source.name, line, subject, text)


def _folder(file: str) -> str:
    parts = PurePosixPath(file).parent.parts
    return "/".join(parts[: {"core": 3, "platforms": 2}.get(parts[0], 1)])


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
