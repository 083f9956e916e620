from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import main, run_rounds
from benchmarks.engines import EngineError
from benchmarks.measure import Task
from benchmarks.record import Record, Setup
from benchmarks.tuning import Tuning

SETUP = Setup("small", "bfloat16", 4, 8, "two cores")
TASK = Task("small", "small", "bfloat16", 4, 8, [1, 8], 100, 2, 0)


class Stub:
    """An engine that answers at once; log: every (engine, round, batch) that ran. stops_before: batch size before which
    it ends with an error."""

    def __init__(self, name: str, log: list[tuple[str, int, int]], stops_before: int | None = None) -> None:
        self.name = name
        self.tuning = Tuning(missing=["a library"])
        self._log = log
        self._stops_before = stops_before

    def run(self, task: Task) -> Iterator[dict[str, Any]]:
        for batch in task.batches:
            if batch == self._stops_before:
                raise EngineError(f"{self.name} ended with 1: out of memory")
            self._log.append((self.name, task.seed, batch))
            yield {"batch": batch, "prefill": 1.0, "decode": 2.0, "load_s": 3.0, "version": "4"}


def run(engines: list[Stub], record: Record, rounds: int = 2) -> list[str]:
    return run_rounds(engines, TASK, record, rounds, lambda line: None, lambda: 0.25)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "rounds.json", SETUP)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}), encoding="utf-8")
    return tmp_path


def test_engines_take_turns_and_each_round_is_kept(record: Record):
    log: list[tuple[str, int, int]] = []
    assert run([Stub("tessera", log), Stub("vllm", log)], record) == []
    names = ("tessera", "vllm")
    assert log == [(name, number, batch) for number in (1, 2) for name in names for batch in (1, 8)]
    assert [(cell.engine, cell.round, cell.batch) for cell in Record.open(record.path, SETUP).cells] == log
    assert {(cell.busy, cell.missing) for cell in record.cells} == {(0.25, ("a library",))}


def test_an_interrupted_comparison_runs_only_what_is_missing(record: Record):
    before: list[tuple[str, int, int]] = []
    run([Stub("tessera", before, stops_before=8), Stub("vllm", before)], record, rounds=1)
    after: list[tuple[str, int, int]] = []
    run([Stub("tessera", after), Stub("vllm", after)], Record.open(record.path, SETUP))
    assert after == [("tessera", 1, 8), *[(name, 2, batch) for name in ("tessera", "vllm") for batch in (1, 8)]]


def test_one_that_fails_is_left_out_and_the_others_go_on(record: Record):
    log: list[tuple[str, int, int]] = []
    failed = run([Stub("tessera", log), Stub("vllm", log, stops_before=1)], record)
    assert failed == ["vllm ended with 1: out of memory"]
    assert {name for name, _, _ in log} == {"tessera"}
    assert len(log) == 4


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 30


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--batch", "1,x", "x is not a whole number from 1 on"),
        ("--batch", "0", "0 is not a whole number from 1 on"),
        ("--output", "1", "1 is not a whole number from 2 on"),
        ("--peers", "nowhere", "there is no folder nowhere"),
        ("--model", ".", ". holds no config.json"),
    ],
)
def test_a_wrong_option_is_one_line(
    option: str, value: str, said: str, model: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as raised:
        main(["--model", str(model), option, value])
    assert raised.value.code == 2
    assert f"argument {option}: {said}" in capsys.readouterr().err.splitlines()[-1]


def test_a_record_of_something_else_is_one_line(model: Path, capsys: pytest.CaptureFixture[str]):
    kept = model / "rounds.json"
    kept.write_text("{}", encoding="utf-8")
    assert main(["--model", str(model), "--json", str(kept)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "does not hold the rounds of a comparison" in said[0]
    assert kept.read_text(encoding="utf-8") == "{}"
