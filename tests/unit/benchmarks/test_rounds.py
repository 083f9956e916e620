from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agreement import Agreement
from benchmarks.record import Cell, Record, Setup, Shape
from benchmarks.rounds import Outcome, RoundCallbacks, Surroundings, run_rounds
from benchmarks.task import Task
from benchmarks.tuning import Tuning

SETUP = Setup("small", "bfloat16", "two cores")
SHAPES = {"decode": Shape(4, 8)}
TASK = Task("decode", "small", "small", "bfloat16", 4, 8, [1, 8], 100, 2, 0)

Log = list[tuple[str, Any]]


class Stub:
    """An engine that answers at once. log: (row, what it did), a batch size for a measurement."""

    def __init__(self, row: str, log: Log, decode: float = 2.0) -> None:
        self.row = row
        self.name, self.variant = row.split()
        self.precision = "plain" if self.variant == "bf16" else "int8"
        self.tuning = Tuning(missing=["a library"])
        self._log = log
        self._decode = decode

    def loaded(self, task: Task) -> Generator[dict[str, Any]]:
        self._log.append((self.row, f"load for round {task.seed}"))
        measured = self._measured(task)
        next(measured)
        return measured

    def _measured(self, task: Task) -> Generator[dict[str, Any]]:
        try:
            yield {}
            for batch in task.batches:
                self._log.append((self.row, batch))
                about = {"load_s": 3.0, "version": "4", "bits": 16.0, "answers": [[1], [2]]}
                yield {"batch": batch, "values": {"decode": self._decode}, **about}
        finally:
            self._log.append((self.row, "end"))


def run(turns: list[tuple[Stub, ...]], record: Record, rounds: int = 1) -> Outcome:
    callbacks = RoundCallbacks(
        say=lambda line: None,
        look=lambda: Surroundings(0.25, {"read GB/s": 40.0}),
        judge=lambda answers: Agreement(len(answers), 2, 0.5, "reference"),
        bound=lambda task, batch, found: {"decode": batch * found["read GB/s"], "prefill": 1.0},
        is_over=lambda: False,
    )
    return run_rounds(turns, TASK, record, rounds, callbacks)


def measured(log: Log) -> Log:
    return [(row, what) for row, what in log if isinstance(what, int)]


def kept(record: Record, number: int = 1) -> list[tuple[str, str, int]]:
    cells = Record.open(record.path, SETUP, SHAPES).cells
    return [(cell.turn, cell.row, cell.batch) for cell in cells if cell.round == number]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "rounds.json", SETUP, SHAPES)


def test_both_of_a_turn_are_loaded_and_each_batch_size_is_measured_with_one_and_then_the_other(record: Record):
    log: Log = []
    assert run([(Stub("tessera bf16", log), Stub("vllm bf16", log))], record).failed == []
    assert log[:2] == [("tessera bf16", "load for round 1"), ("vllm bf16", "load for round 1")]
    assert log[2:6] == [(row, batch) for batch in (1, 8) for row in ("tessera bf16", "vllm bf16")]
    assert sorted(log[6:]) == [("tessera bf16", "end"), ("vllm bf16", "end")]


def test_who_is_first_takes_turns(record: Record):
    log: Log = []
    run([(Stub("tessera bf16", log), Stub("vllm bf16", log))], record, rounds=2)
    ours, theirs = "tessera bf16", "vllm bf16"
    assert [row for row, _ in measured(log)] == [*(ours, theirs, ours, theirs), *(theirs, ours, theirs, ours)]


def test_each_turn_is_kept_with_what_the_machine_allowed(record: Record):
    ours = Stub("tessera int8", [])
    run([(ours, Stub("vllm W8A8", [])), (ours, Stub("llama.cpp Q8_0", []))], record)
    rivals = ("vllm W8A8", "llama.cpp Q8_0")
    assert kept(record) == [
        (rival, row, batch) for rival in rivals for batch in (1, 8) for row in ("tessera int8", rival, "limit int8")
    ]
    cells = record.cells
    assert {cell.precision for cell in cells} == {"int8"}
    engines = [cell for cell in cells if cell.engine != "limit"]
    assert {(cell.busy, cell.missing, cell.bits) for cell in engines} == {(0.25, ("a library",), 16.0)}
    assert {cell.agreement for cell in engines} == {Agreement(2, 2, 0.5, "reference")}
    assert all(cell.machine == {"read GB/s": 40.0} for cell in cells)
    assert [cell.values for cell in cells if cell.engine == "limit"][:2] == [{"decode": 40.0}, {"decode": 320.0}]


def test_a_rival_that_was_measured_alone_is_measured_again_beside_ours(record: Record):
    run([(Stub("vllm bf16", [], decode=1.0),)], record)
    run([(Stub("tessera bf16", []), Stub("vllm bf16", [], decode=3.0))], Record.open(record.path, SETUP, SHAPES))
    found = Record.open(record.path, SETUP, SHAPES).cells
    assert sorted((cell.row, cell.batch) for cell in found if cell.engine != "limit") == [
        (row, batch) for row in ("tessera bf16", "vllm bf16") for batch in (1, 8)
    ]
    assert [cell.values["decode"] for cell in found if cell.row == "vllm bf16"] == [3.0, 3.0]


def test_a_limit_stands_only_in_a_part_with_its_figures(tmp_path: Path):
    record = Record(tmp_path / "start.json", SETUP, {"start": Shape(32, 1)})
    callbacks = RoundCallbacks(
        say=lambda line: None,
        look=lambda: Surroundings(None, {}),
        judge=lambda answers: None,
        bound=lambda task, batch, found: {"decode": 1.0},
        is_over=lambda: False,
    )

    class Ready(Stub):
        def _measured(self, task: Task) -> Generator[dict[str, Any]]:
            yield {}
            yield {"batch": 1, "values": {"ready_s": 1.0}, "load_s": 1.0, "version": "4", "answers": []}

    task = Task("start", "small", "small", "bfloat16", 32, 1, [1], 100, 2, 0)
    run_rounds([(Ready("vllm bf16", []),)], task, record, 1, callbacks)
    assert [cell.row for cell in record.cells] == ["vllm bf16"]
    assert isinstance(record.cells[0], Cell)
