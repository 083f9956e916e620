"""Runs what a record lacks: all turns of a part once, then all again. In a turn ours and one rival are loaded, and each
batch size is measured with one and then with the other while the first one waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from benchmarks.agreement import Agreement
from benchmarks.parts import PARTS, Part
from benchmarks.record import Cell, Record
from benchmarks.report import LIMIT
from benchmarks.running import EngineError
from benchmarks.task import PLAIN, SHORT, Task
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
    def loaded(self, task: Task) -> Generator[dict[str, Any]]: ...


@dataclass(frozen=True)
class Surroundings:
    """Of a measurement, just before it: the share of the machine that others used, and what the machine could do."""

    busy: float | None
    machine: Mapping[str, float]


@dataclass(frozen=True)
class Around:
    """What the rounds do beside the engines. say: a line to who waits. look: at the machine. judge: answers to prompts
    that are checked, None where there is no reference. bound: values that what the machine can do allows for a batch
    size of a task, none where that is not known. is_over: whether the time is."""

    say: Callable[[str], None]
    look: Callable[[], Surroundings]
    judge: Callable[[list[list[int]]], Agreement | None]
    bound: Callable[[Task, int, Mapping[str, float]], Mapping[str, float]]
    is_over: Callable[[], bool]


@dataclass(frozen=True)
class Outcome:
    """failed: why rows were left out. unfinished: whether the time was over before the last round."""

    failed: list[str]
    unfinished: bool


def run_rounds(turns: Sequence[Sequence[Runnable]], task: Task, record: Record, rounds: int, around: Around) -> Outcome:
    """An engine that fails is left out from there on; no turn is begun when the time is over. turns: of engines of one
    precision; each is named by the last of its engines, the rival, without which it is left out."""
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for turn in turns:
            name = turn[-1].row
            engines = [engine for engine in turn if engine.row not in failed]
            batches = record.lacks(task.part, number, name, [engine.row for engine in engines], task.batches)
            if not batches or name in failed:
                continue
            if around.is_over():
                return Outcome(list(failed.values()), unfinished=True)
            rows = ", ".join(engine.row for engine in engines)
            around.say(f"round {number} of {rounds}: {rows}; {PARTS[task.part].at} {', '.join(map(str, batches))}")
            asked = replace(task, batches=batches, seed=number, precision=turn[-1].precision)
            # Who is first takes turns too, since the machine changes while they run.
            _run_turn(engines if number % 2 else engines[::-1], _Place(asked, number, name), record, around, failed)
    return Outcome(list(failed.values()), unfinished=False)


@dataclass(frozen=True)
class _Place:
    """A turn of a round: what is asked in it, and the rival that it is named by."""

    task: Task
    round: int
    turn: str

    def cell(self, batch: int, found: Surroundings, **more: Any) -> Cell:
        return Cell(
            part=self.task.part,
            round=self.round,
            turn=self.turn,
            precision=self.task.precision,
            batch=batch,
            time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            busy=found.busy,
            machine=dict(found.machine),
            **more,
        )


def _run_turn(
    engines: Sequence[Runnable], place: _Place, record: Record, around: Around, failed: dict[str, str]
) -> None:
    """Adds to those that failed, by row, why."""
    with contextlib.ExitStack() as ends:
        loaded = []
        for engine in engines:
            with _noted(engine.row, failed, around.say):
                loaded.append((engine, ends.enter_context(contextlib.closing(engine.loaded(place.task)))))
        for batch in place.task.batches:
            if place.turn in failed:
                return
            found = around.look()
            cells = []
            for engine, results in loaded:
                if engine.row not in failed:
                    with _noted(engine.row, failed, around.say):
                        cells.append(_measured(engine, results, place, found, around))
                        around.say(f"  {engine.row}, {_line(PARTS[place.task.part], cells[-1])}")
            if place.turn not in failed:
                record.add(*cells, *_limit(place, batch, found, around))


@contextlib.contextmanager
def _noted(row: str, failed: dict[str, str], say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        failed[row] = str(error)
        say(f"  {error}")


def _measured(
    engine: Runnable, results: Iterator[dict[str, Any]], place: _Place, found: Surroundings, around: Around
) -> Cell:
    result = next(results, None)
    if result is None:
        raise EngineError(f"{engine.row} ended before it had measured all")
    result |= {"missing": tuple(engine.tuning.missing), "agreement": around.judge(result["answers"])}
    return place.cell(found=found, engine=engine.name, variant=engine.variant, **result)


def _limit(place: _Place, batch: int, found: Surroundings, around: Around) -> list[Cell]:
    """What the machine allows at this moment, as a row beside the engines'; none where nothing of it is in the part."""
    task = place.task
    allowed = around.bound(task, batch, found.machine)
    values = {figure.name: allowed[figure.name] for figure in PARTS[task.part].figures if figure.name in allowed}
    variant = SHORT[task.dtype] if task.precision == PLAIN else task.precision
    limit = place.cell(batch, found, engine=LIMIT, variant=variant, values=values, load_s=0.0, version="")
    return [limit] if values else []


def _line(part: Part, cell: Cell) -> str:
    shown = (f"{figure.title}: {cell.values[figure.name]:.4g}" for figure in part.figures)
    return f"{part.at} {cell.batch}: {'; '.join(shown)}"
