"""Each figure of the host is there, with its goal and its ratio to the loop, in the log and in the record."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from benchmarks.host import __main__ as program
from benchmarks.host import message, prefixes, step, text
from benchmarks.host.loop import run_loop

GOALS = {"step": 250, "further": 0.7, "message": 150, "line": 3, "hop": 0.5, "hashing": 30, "caching": 5}


def test_the_loop_is_the_same_as_ever():
    assert run_loop() == 450_549


def test_every_goal_has_its_figure_in_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(program, "ROWS", 8)
    monkeypatch.setattr(prefixes, "PROMPT", 64)
    path = tmp_path / "new" / "host.json"
    monkeypatch.setattr(sys, "argv", ["host", "--brief", "--json", str(path)])
    program.main()
    record = msgspec.json.decode(path.read_bytes(), type=program.Record)
    assert {figure.name: figure.goal for figure in record.figures if figure.goal} == GOALS
    for figure in record.figures:
        in_us = figure.value * {"us": 1, "ns": 1e-3, "ms": 1e3}[figure.unit]
        assert figure.loops == pytest.approx(in_us / figure.loop_us, rel=0.01, abs=1e-5)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(record.figures) + 1
    assert all(name in lines[-1] for name in GOALS)


def test_all_rows_decode_in_the_steps_that_are_timed():
    times = step.measure(4, 20, depth=2)
    assert len(times.schedule) >= 18
    assert times.whole > 0


def test_the_parts_give_a_figure():
    assert message.measure(8, 5) > 0
    assert text.measure_lines(2, 3) > 0
    assert text.measure_front(2, 3) > 0
    worker, place = text.measure_hop(5)
    assert worker > place > 0
    assert prefixes.measure_hashing(64, 2) > 0
