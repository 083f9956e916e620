"""One conformance test and its result; and reports of all results: a table for people, records for programs, tensors of
failures for a debugger."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

Level = Literal["bronze", "silver", "gold"]
LEVELS: tuple[Level, ...] = ("bronze", "silver", "gold")
Status = Literal["passed", "failed", "falls back", "n/a"]

MARGIN = 0.15
"""How far off a measured median may be on a shared machine: a smaller difference does not count as slower."""
INSTANT = 2e-6
"""Seconds by which the time of an empty call may vary."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call of an op with this many tokens, native and the reference, on the same device."""

    op: str
    dtype: str
    tokens: int
    native: float
    reference: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the reference."""
        return self.reference / self.native

    @property
    def slower(self) -> bool:
        """Whether the kernel is slower than the reference by more than the measurement may be off."""
        return self.native > (1 + MARGIN) * self.reference + INSTANT


@dataclass(frozen=True)
class Verdict:
    """The outcome of a case that did not fail. text: why the reference runs instead, or what the platform declares
    absent. timings: of a case that measures."""

    status: Status = "passed"
    text: str = ""
    timings: tuple[Timing, ...] = ()


PASSED = Verdict()


def falls_back(why: str) -> Verdict:
    """The verdict if the platform does not claim to support something, so that core's reference runs instead."""
    return Verdict("falls back", why)


def absent(why: str) -> Verdict:
    """The verdict if the platform declares that it does not have something."""
    return Verdict("n/a", why)


class ConformanceError(AssertionError):
    """A claim of the platform that is wrong, in one line. tensors: those to inspect, by name. timings: of a case that
    measures."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor] | None = None, timings: Sequence[Timing] = ()) -> None:
        super().__init__(text)
        self.text, self.tensors, self.timings = text, dict(tensors or {}), tuple(timings)


@dataclass(frozen=True)
class Case:
    """One test."""

    id: str  # such as "op/linear/3"
    level: Level
    subject: str  # the op, or the part of the contract, that it tests
    run: Callable[[], Verdict]  # raises if the platform is wrong
    measures: bool = False  # it measures speed

    def __str__(self) -> str:
        return self.id

    def result(self) -> Result:
        """Runs the case. Any exception that the platform raises is a failure."""
        start = time.perf_counter()
        tensors: Mapping[str, Tensor] = {}
        try:
            verdict = self.run()
        except ConformanceError as error:
            verdict, tensors = Verdict("failed", error.text, error.timings), error.tensors
        except Exception as error:  # noqa: BLE001  # a platform may raise anything, and that is the result
            verdict = Verdict("failed", described(error))
        return Result(self, verdict.status, verdict.text, time.perf_counter() - start, tensors, verdict.timings)


@dataclass(frozen=True)
class Result:
    """The result of a case. text: of a failure, where and what; otherwise why it falls back or is absent. seconds: how
    long it took."""

    case: Case
    status: Status
    text: str
    seconds: float
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()

    @property
    def line(self) -> str:
        return f"{self.case.id}: {self.text}"


def described(error: BaseException) -> str:
    """An exception in one line."""
    said = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}: {said}"[:300]


def named(**values: Any) -> dict[str, Tensor]:
    """Nested values as dense tensors by dotted name, on the host, for a file."""
    found: dict[str, Tensor] = {}

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            dense = value.to_dense() if value.is_mkldnn else value
            found[name] = dense.detach().cpu().contiguous().clone()
        elif isinstance(value, Mapping):
            for key, part in value.items():
                collect(f"{name}.{key}", part)
        elif isinstance(value, tuple | list):
            for key, part in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
                collect(f"{name}.{key}", part)

    for name, value in values.items():
        collect(name, value)
    return found


# ---- reports

STATUSES: tuple[Status, ...] = ("passed", "failed", "falls back", "n/a")
_HEADER = ("SUBJECT", "LEVEL", "PASSED", "FAILED", "FALLS BACK", "N/A", "WHY NOT NATIVE")


def table(results: Sequence[Result]) -> str:
    """One line per subject, in the order of the tests."""
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
    """One line per measurement."""
    rows = [("OP", "DTYPE", "TOKENS", "NATIVE US", "REFERENCE US", "TIMES AS FAST")]
    for timing in (timing for result in results for timing in result.timings):
        taken = f"{timing.native * 1e6:.1f}", f"{timing.reference * 1e6:.1f}"
        rows.append((timing.op, timing.dtype, str(timing.tokens), *taken, f"{timing.ratio:.2f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def reached(results: Sequence[Result], target: Level) -> Level | None:
    """The highest level, up to the target, at which and below which nothing failed."""
    highest: Level | None = None
    for level in LEVELS[: LEVELS.index(target) + 1]:
        if any(result.status == "failed" for result in results if result.case.level == level):
            break
        highest = level
    return highest


def record(result: Result) -> dict[str, Any]:
    """A result as --json writes it."""
    case = result.case
    facts: dict[str, Any] = {"id": case.id, "level": case.level, "subject": case.subject}
    facts |= {"status": result.status, "text": result.text, "seconds": round(result.seconds, 4)}
    return facts | ({"timings": [dataclasses.asdict(timing) for timing in result.timings]} if result.timings else {})


def dump(result: Result, folder: Path) -> Path | None:
    """Writes the tensors of a failure to a safetensors file in a folder, which it creates. None if there are none."""
    if not result.tensors:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.case.id.replace('/', '.')}.safetensors"
    save_file(dict(result.tensors), path, {"case": result.case.id, "text": result.text})
    return path
