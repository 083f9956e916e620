"""Runs what a record lacks: all rows of a part once, then all again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from benchmarks.parts import PARTS, Part
from benchmarks.record import Cell, Record
from benchmarks.running import EngineError
from benchmarks.task import Task
from benchmarks.tuning import Tuning


class Runnable(Protocol):
    """An engine as the rounds see it."""

    @property
    def name(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def row(self) -> str: ...
    @property
    def tuning(self) -> Tuning: ...
    def run(self, task: Task) -> Iterator[dict[str, Any]]: ...


@dataclass(frozen=True)
class Surroundings:
    """Of a run, just before it: the share of the machine that others used, and what the machine could do."""

    busy: float | None
    machine: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """failed: why rows were left out. unfinished: whether the time was over before the last round."""

    failed: list[str]
    unfinished: bool


def run_rounds(
    engines: Sequence[Runnable],
    task: Task,
    record: Record,
    rounds: int,
    *,
    say: Callable[[str], None],
    look: Callable[[], Surroundings],
    is_over: Callable[[], bool],
) -> Outcome:
    """One that fails is left out from there on; none is begun when the time is over."""
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for engine in engines:
            batches = record.lacks(task.part, number, engine.row, task.batches)
            if not batches or engine.row in failed:
                continue
            if is_over():
                return Outcome(list(failed.values()), unfinished=True)
            say(f"round {number} of {rounds}: {engine.row}, {PARTS[task.part].at} {', '.join(map(str, batches))}")
            found = look()
            try:
                for result in engine.run(replace(task, batches=batches, seed=number)):
                    cells = _cells(PARTS[task.part], result, number, engine, found)
                    record.add(*cells)
                    say(f"  {_line(PARTS[task.part], cells[0])}")
            except EngineError as error:
                failed[engine.row] = str(error)
                say(f"  {error}")
    return Outcome(list(failed.values()), unfinished=False)


def _cells(part: Part, result: dict[str, Any], number: int, engine: Runnable, found: Surroundings) -> list[Cell]:
    """Of the part, and of the other whose figures the same run gives."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    cell = Cell(
        part=part.name,
        round=number,
        engine=engine.name,
        variant=engine.variant,
        precision=engine.precision,
        time=now,
        busy=found.busy,
        machine=dict(found.machine),
        missing=tuple(engine.tuning.missing),
        **result,
    )
    if part.shares is None:
        return [cell]
    return [cell, Cell(**{name: getattr(cell, name) for name in Cell.__struct_fields__} | {"part": part.shares})]


def _line(part: Part, cell: Cell) -> str:
    shown = (f"{figure.title}: {cell.values[figure.name]:.4g}" for figure in part.figures)
    return f"{part.at} {cell.batch}: {'; '.join(shown)}"
