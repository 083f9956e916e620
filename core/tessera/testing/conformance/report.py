"""What came of all cases: a table for people, records for programs, tensors of what failed for a debugger."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tessera.testing.conformance.case import Level, Result, Status
from tessera.testing.conformance.suites import LEVELS

STATUSES: tuple[Status, ...] = ("passed", "failed", "falls back", "n/a")
_HEADER = ("SUBJECT", "LEVEL", "PASSED", "FAILED", "FALLS BACK", "N/A", "WHY NOT NATIVE")


def table(results: Sequence[Result]) -> str:
    """A line a subject, in the order they were tried."""
    subjects = dict.fromkeys((result.case.subject, result.case.level) for result in results)
    rows: list[tuple[str, ...]] = [_HEADER]
    for subject, level in subjects:
        mine = [result for result in results if (result.case.subject, result.case.level) == (subject, level)]
        counts = (sum(result.status == status for result in mine) for status in STATUSES)
        why = "; ".join(dict.fromkeys(result.text for result in mine if result.status in ("falls back", "n/a")))
        rows.append((subject, level, *(str(count or "-") for count in counts), why))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def speeds(results: Sequence[Result]) -> str:
    """A line a measurement."""
    rows = [("OP", "DTYPE", "TOKENS", "NATIVE US", "REFERENCE US", "TIMES AS FAST")]
    for timing in (timing for result in results for timing in result.timings):
        taken = f"{timing.native * 1e6:.1f}", f"{timing.reference * 1e6:.1f}"
        rows.append((timing.op, timing.dtype, str(timing.tokens), *taken, f"{timing.ratio:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def reached(results: Sequence[Result], asked: Level) -> Level | None:
    """The highest level asked for at and below which nothing failed."""
    highest: Level | None = None
    for level in LEVELS[: LEVELS.index(asked) + 1]:
        if any(result.status == "failed" for result in results if result.case.level == level):
            break
        highest = level
    return highest


def record(result: Result) -> dict[str, Any]:
    """A case as --json has it."""
    case = result.case
    facts: dict[str, Any] = {"id": case.id, "level": case.level, "subject": case.subject}
    facts |= {"status": result.status, "text": result.text, "seconds": round(result.seconds, 4)}
    return facts | ({"timings": [dataclasses.asdict(timing) for timing in result.timings]} if result.timings else {})


def dump(result: Result, folder: Path) -> Path | None:
    """The tensors of a failure as safetensors in a folder, which is made; None where it has none."""
    if not result.tensors:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.case.id.replace('/', '.')}.safetensors"
    save_file(dict(result.tensors), path, {"case": result.case.id, "text": result.text})
    return path
