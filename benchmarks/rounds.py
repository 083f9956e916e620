"""Runs what a record lacks: all turns of a part once, then all again. A turn loads our engine and one rival, and
measures each batch size with one and then the other, while the first one waits."""

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
    """The interface of an engine that the rounds need."""

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
    """The conditions just before a measurement: the fraction of the machine that others used, and its rates."""

    busy: float | None
    machine: Mapping[str, float]


@dataclass(frozen=True)
class RoundCallbacks:
    """Everything the rounds need besides engines."""

    # Prints a line for the user.
    say: Callable[[str], None]
    # Measures the surroundings.
    look: Callable[[], Surroundings]
    # Compares answers to the check prompts; None if there is no reference.
    judge: Callable[[list[list[int]]], Agreement | None]
    # The values that the machine's rates allow for a batch size of a task; empty if not known.
    bound: Callable[[Task, int, Mapping[str, float]], Mapping[str, float]]
    # Whether time is up.
    is_over: Callable[[], bool]


@dataclass(frozen=True)
class Outcome:
    """failed: why rows were dropped. unfinished: whether time was up before the last round ended."""

    failed: list[str]
    unfinished: bool


def run_rounds(
    turns: Sequence[Sequence[Runnable]], task: Task, record: Record, rounds: int, callbacks: RoundCallbacks
) -> Outcome:
    """Runs all rounds. An engine that fails is dropped from then on; no turn is started once time is up. turns: engines
    of one precision each, named after the last one, the rival; a turn is dropped if its rival is."""
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for turn in turns:
            name = turn[-1].row
            engines = [engine for engine in turn if engine.row not in failed]
            batches = record.lacks(task.part, number, name, [engine.row for engine in engines], task.batches)
            if not batches or name in failed:
                continue
            if callbacks.is_over():
                return Outcome(list(failed.values()), unfinished=True)
            rows = ", ".join(engine.row for engine in engines)
            callbacks.say(f"round {number} of {rounds}: {rows}; {PARTS[task.part].at} {', '.join(map(str, batches))}")
            of_turn = replace(task, batches=batches, seed=number, precision=turn[-1].precision)
            # Alternate which engine runs first, since the machine's speed drifts during a turn.
            _run_turn(
                engines if number % 2 else engines[::-1], _Place(of_turn, number, name), record, callbacks, failed
            )
    return Outcome(list(failed.values()), unfinished=False)


@dataclass(frozen=True)
class _Place:
    """A turn of a round: its task, and the rival that names it."""

    task: Task
    round: int
    turn: str

    def cell(self, batch: int, surroundings: Surroundings, **fields: Any) -> Cell:
        return Cell(
            part=self.task.part,
            round=self.round,
            turn=self.turn,
            precision=self.task.precision,
            batch=batch,
            time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            busy=surroundings.busy,
            machine=dict(surroundings.machine),
            **fields,
        )


def _run_turn(
    engines: Sequence[Runnable], place: _Place, record: Record, callbacks: RoundCallbacks, failed: dict[str, str]
) -> None:
    """Runs a turn. Adds failures to `failed`, by row."""
    with contextlib.ExitStack() as ends:
        loaded = []
        for engine in engines:
            with _noted(engine.row, failed, callbacks.say):
                loaded.append((engine, ends.enter_context(contextlib.closing(engine.loaded(place.task)))))
        for batch in place.task.batches:
            if place.turn in failed:
                return
            surroundings = callbacks.look()
            cells = []
            for engine, results in loaded:
                if engine.row not in failed:
                    with _noted(engine.row, failed, callbacks.say):
                        cells.append(_measured(engine, results, place, surroundings, callbacks))
                        callbacks.say(f"  {engine.row}, {_line(PARTS[place.task.part], cells[-1])}")
            if place.turn not in failed:
                record.add(*cells, *_limit(place, batch, surroundings, callbacks))


@contextlib.contextmanager
def _noted(row: str, failed: dict[str, str], say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        failed[row] = str(error)
        say(f"  {error}")


def _measured(
    engine: Runnable,
    results: Iterator[dict[str, Any]],
    place: _Place,
    surroundings: Surroundings,
    callbacks: RoundCallbacks,
) -> Cell:
    result = next(results, None)
    if result is None:
        raise EngineError(f"{engine.row} ended before it had measured all")
    result |= {"missing": tuple(engine.tuning.missing), "agreement": callbacks.judge(result["answers"])}
    return place.cell(surroundings=surroundings, engine=engine.name, variant=engine.variant, **result)


def _limit(place: _Place, batch: int, surroundings: Surroundings, callbacks: RoundCallbacks) -> list[Cell]:
    """What the machine allows at the moment, as a row like the engines'; none if it applies to no figure of the
    part."""
    task = place.task
    allowed = callbacks.bound(task, batch, surroundings.machine)
    values = {figure.name: allowed[figure.name] for figure in PARTS[task.part].figures if figure.name in allowed}
    variant = SHORT[task.dtype] if task.precision == PLAIN else task.precision
    limit = place.cell(batch, surroundings, engine=LIMIT, variant=variant, values=values, load_s=0.0, version="")
    return [limit] if values else []


def _line(part: Part, cell: Cell) -> str:
    shown = (f"{figure.title}: {cell.values[figure.name]:.4g}" for figure in part.figures)
    return f"{part.at} {cell.batch}: {'; '.join(shown)}"
