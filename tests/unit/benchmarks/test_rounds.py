from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.record import Record, Setup, Shape
from benchmarks.rounds import Outcome, Surroundings, run_rounds
from benchmarks.running import EngineError
from benchmarks.task import Task
from benchmarks.tuning import Tuning

SETUP = Setup("small", "bfloat16", "two cores")
SHAPES = {"decode": Shape(4, 8), "prefill": Shape(4, 1)}
TASK = Task("decode", "small", "small", "bfloat16", 4, 8, [1, 8], 100, 2, 0)

Ran = list[tuple[str, int, int]]


class Stub:
    """An engine that answers at once; log: every (row, round, batch) that ran. stops_before: batch size before which
    it ends with an error."""

    def __init__(self, name: str, log: Ran, stops_before: int | None = None, variant: str = "bf16") -> None:
        self.name, self.variant, self.row = name, variant, f"{name} {variant}"
        self.precision = "plain" if variant == "bf16" else "int8"
        self.tuning = Tuning(missing=["a library"])
        self._log = log
        self._stops_before = stops_before

    def run(self, task: Task) -> Iterator[dict[str, Any]]:
        for batch in task.batches:
            if batch == self._stops_before:
                raise EngineError(f"{self.name} ended with 1: out of memory")
            self._log.append((self.row, task.seed, batch))
            values = {"prefill": 1.0, "decode": 2.0}
            yield {"batch": batch, "values": values, "load_s": 3.0, "version": "4", "bits": 16.0}


def run(engines: list[Stub], record: Record, rounds: int = 2, is_over: Callable[[], bool] = lambda: False) -> Outcome:
    return run_rounds(
        engines,
        TASK,
        record,
        rounds,
        say=lambda line: None,
        look=lambda: Surroundings(0.25, {"read GB/s": 40.0}),
        is_over=is_over,
    )


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "rounds.json", SETUP, SHAPES)


def test_rows_take_turns_and_each_round_is_kept(record: Record):
    log: Ran = []
    assert run([Stub("tessera", log), Stub("vllm", log), Stub("vllm", log, variant="W8A8")], record).failed == []
    rows = ("tessera bf16", "vllm bf16", "vllm W8A8")
    assert log == [(row, number, batch) for number in (1, 2) for row in rows for batch in (1, 8)]
    kept = [cell for cell in Record.open(record.path, SETUP, SHAPES).cells if cell.part == "decode"]
    assert [(cell.row, cell.round, cell.batch) for cell in kept] == log
    assert {(cell.busy, cell.missing, cell.bits) for cell in kept} == {(0.25, ("a library",), 16.0)}
    assert all(cell.machine == {"read GB/s": 40.0} for cell in kept)
    assert [cell.precision for cell in kept[4:6]] == ["int8", "int8"]


def test_a_run_for_decode_stands_under_prefill_too(record: Record):
    run([Stub("tessera", [])], record, rounds=1)
    assert [(cell.part, cell.batch) for cell in record.cells] == [
        ("decode", 1),
        ("prefill", 1),
        ("decode", 8),
        ("prefill", 8),
    ]
    assert record.lacks("prefill", 1, "tessera bf16", [1, 8]) == []


def test_an_interrupted_comparison_runs_only_what_is_missing(record: Record):
    before: Ran = []
    run([Stub("tessera", before, stops_before=8), Stub("vllm", before)], record, rounds=1)
    after: Ran = []
    run([Stub("tessera", after), Stub("vllm", after)], Record.open(record.path, SETUP, SHAPES))
    rows = ("tessera bf16", "vllm bf16")
    assert after == [("tessera bf16", 1, 8), *[(row, 2, batch) for row in rows for batch in (1, 8)]]


def test_one_that_fails_is_left_out_and_the_others_go_on(record: Record):
    log: Ran = []
    outcome = run([Stub("tessera", log), Stub("vllm", log, stops_before=1), Stub("vllm", log, variant="W8A8")], record)
    assert outcome == Outcome(["vllm ended with 1: out of memory"], unfinished=False)
    assert {row for row, _, _ in log} == {"tessera bf16", "vllm W8A8"}
    assert len(log) == 8


def test_none_is_begun_when_the_time_is_over(record: Record):
    log: Ran = []
    outcome = run([Stub("tessera", log), Stub("vllm", log)], record, is_over=lambda: len(log) >= 4)
    assert outcome.unfinished
    assert [(row, number) for row, number, _ in log[::2]] == [("tessera bf16", 1), ("vllm bf16", 1)]
    run([Stub("tessera", log), Stub("vllm", log)], record)
    assert [(row, number) for row, number, _ in log[4::2]] == [("tessera bf16", 2), ("vllm bf16", 2)]
