"""`make gpu` where there is no GPU: what it does with parts that fail, hang or die; and what tools/gpu_wheels.py
leaves to the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.figures import Figure, Measure, record

from tessera.testing.conformance import Case, ConformanceError, Verdict
from tools.gpu import checks
from tools.gpu.cases import LOST, run
from tools.gpu.chat import FailedError
from tools.gpu.ledger import Ledger
from tools.gpu.parts import CALLS, PARTS
from tools.gpu.running import Limits, Notes, Parts, act, marked
from tools.gpu.shares import Shares, figures
from tools.gpu.surroundings import obstacle
from tools.gpu.verdict import verdict
from tools.gpu_wheels import LEFT_OUT, closure, pins, wanted

MINUTE = Limits(longest=60, shortest=0)
PROGRAMS = {
    "passes": "say(tokens_s=12.3456)",
    "fails": "say(so_far=1, failed='it is broken'); sys.exit(1)",
    "dies": "os.abort()",
    "hangs": "say(so_far=2); subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)",
}


@pytest.fixture
def parts(tmp_path: Path) -> Callable[[float], Parts]:
    """parts(seconds): of PROGRAMS."""

    def of(seconds: float) -> Parts:
        def command(name: str, seconds: float) -> Sequence[str]:
            path = str(tmp_path / f"{name}.json")
            start = f"import json, os, subprocess, sys, time\ndef say(**said): json.dump(said, open({path!r}, 'w'))\n"
            return [sys.executable, "-c", start + PROGRAMS[name]]

        return Parts(command, tmp_path, tmp_path, seconds, {"device": "none"})

    return of


def test_without_the_device_it_says_so_in_one_line(root: Path, tmp_path: Path) -> None:
    for required, code in (("", 0), ("1", 1)):
        environment = {**os.environ, "TESSERA_REQUIRE_ALL": required}
        command = [sys.executable, "-m", "tools.gpu", "--device", "nobodys", "--out", str(tmp_path / "out")]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout == "gpu did not run: torch finds no nobodys here\n"
    assert not (tmp_path / "out").exists()


def test_it_starts_with_nothing_but_python(root: Path) -> None:
    command = [sys.executable, "-S", "-m", "tools.gpu", "--help"]
    done = subprocess.run(command, cwd=root, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"--{flag}" in done.stdout for flag in ("part", "minutes", "rehearse"))


def test_without_wheels_for_what_python_lacks_it_says_how_to_get_them(tmp_path: Path) -> None:
    lacking = "cpu", tmp_path, ["nobodys_package"]
    assert obstacle(*lacking) == f"no wheels in {tmp_path.name}: make gpu-wheels downloads them"
    assert obstacle("cpu", tmp_path, ["json"]) is None
    (tmp_path / "some.whl").touch()
    assert obstacle(*lacking) is None


def test_a_part_that_fails_or_dies_stops_no_other(parts: Callable[[float], Parts], tmp_path: Path, capsys: Any) -> None:
    fails, dies, passes = parts(60).run(dict.fromkeys(("fails", "dies", "passes"), MINUTE))
    assert (fails.outcome, fails.closing, fails.figures) == ("failed", "it is broken so_far 1", {"so_far": 1})
    assert (dies.outcome, dies.closing) == ("failed", "its process ended with -6; gpu.log has the rest")
    assert (passes.outcome, passes.closing) == ("passed", "tokens_s 12.3")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["fails", "dies", "passes"]
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["device"] == "none"
    assert [part["outcome"] for part in record["parts"]] == ["failed", "failed", "passed"]


def test_a_part_that_hangs_is_ended_with_all_that_it_started(parts: Callable[[float], Parts]) -> None:
    began = time.monotonic()
    hangs, passes = parts(60).run({"hangs": Limits(longest=2, shortest=0), "passes": MINUTE})
    assert (hangs.outcome, hangs.closing, hangs.figures) == ("out of time", "after 2 s; so_far 2", {"so_far": 2})
    assert passes.outcome == "passed"
    assert time.monotonic() - began < 30
    assert list(marked(f"{os.getpid()}-hangs")) == []


def test_what_cannot_begin_in_time_is_told(parts: Callable[[float], Parts]) -> None:
    (late,) = parts(5).run({"passes": Limits(longest=60, shortest=10)})
    assert (late.outcome, late.closing) == ("not begun", "5 s were left, and it needs 10")
    first, second = parts(60).run({"fails": MINUTE, "passes": MINUTE}, needed="fails")
    assert (first.outcome, second.outcome, second.closing) == ("failed", "not begun", "fails did not pass")


def test_what_is_broken_slow_and_as_expected_is_one_page(parts: Callable[[float], Parts], tmp_path: Path) -> None:
    results = parts(60).run(dict.fromkeys(("fails", "passes"), MINUTE))
    results[0].figures["failures"] = {"op/linear/3": "differs by 0.5"}
    measures = [
        Measure("large", figures=[
            Figure("decode_of_copy", 0.5, "", 0.85), Figure("start", 4.0, "s", 10.0, less_is_better=True),
            Figure("copy", 3000.0, "GB/s"), Figure("large_on_reference", 1, "ops gate"),
        ]),
        Measure("fp8", "ended after its 60 s"),
    ]  # fmt: skip
    assert verdict(results, record(measures, {}), rehearsed=False).splitlines() == [
        "Broken: 4",
        "  fails failed: it is broken so_far 1",
        "    op/linear/3: differs by 0.5",
        "  large_on_reference: ops gate",
        "  bench, fp8: ended after its 60 s",
        "",
        "Slow: 1",
        "  decode_of_copy: 0.5, 0.59 of the goal",
        "",
        "As expected: 2",
        "  passes, 0 s: tokens_s 12.3",
        "  start: 4 s, 2.50 of the goal",
    ]
    assert verdict(results[1:], {}, rehearsed=True).startswith("REHEARSED on the host")


def test_the_page_is_there_after_each_part(parts: Callable[[float], Parts], tmp_path: Path) -> None:
    pages = []

    def page(results: Sequence[Any]) -> str:
        pages.append((tmp_path / "verdict.txt").read_text() if pages else "none")
        return f"{len(results)} parts"

    several = parts(60)
    several.page = page
    several.run(dict.fromkeys(("fails", "passes"), MINUTE))
    assert pages == ["none", "1 parts"]
    assert (tmp_path / "verdict.txt").read_text() == "2 parts"


def test_each_call_fits_a_lease() -> None:
    """Of 15 minutes, of which starting a machine twice takes three."""
    assert [call.seconds for call in CALLS.values()] == [170, 480]
    for call in CALLS.values():
        assert set(call.limits) <= set(PARTS)
        assert sum(limit.shortest for limit in call.limits.values()) < call.seconds


def test_checks_run_at_once_and_hang_alone(tmp_path: Path) -> None:
    commands = {
        name: [sys.executable, "-c", text]
        for name, text in {
            "right": "print('some'); print('as loaded')",
            "wrong": "print('it gives other numbers'); raise SystemExit(1)",
            "stuck": "import time; print('begun', flush=True); time.sleep(60)",
        }.items()
    }
    notes, began = Notes(tmp_path / "notes.json"), time.monotonic()
    with pytest.raises(FailedError, match="wrong ended with 1: it gives other numbers; stuck hung: begun"):
        checks.run(commands, 2.0, tmp_path, os.environ, notes)
    assert time.monotonic() - began < 30
    ends = {name: figure.partition(" after ")[0] for name, figure in notes.figures.items()}
    assert ends == {"right": "passed", "wrong": "ended with 1", "stuck": "hung"}
    assert notes.figures["right"].endswith("s: as loaded")


def test_a_part_keeps_the_figures_it_had_when_it_failed(tmp_path: Path) -> None:
    def part(notes: Notes) -> None:
        notes.add(first=1)
        raise FailedError("not\nmore")

    assert act(part, Notes(tmp_path / "notes.json")) == 1
    assert json.loads((tmp_path / "notes.json").read_text()) == {"first": 1, "failed": "not more"}


def cases(*names: str, fails: str = "") -> list[Case]:
    def check(name: str) -> Verdict:
        if name == fails:
            raise ConformanceError("it is wrong")
        return Verdict()

    return [Case(name, "bronze", "op", lambda name=name: check(name)) for name in names]


def test_cases_go_on_behind_the_one_that_lost_the_device(tmp_path: Path) -> None:
    ledger, three = Ledger(tmp_path / "cases.jsonl"), cases("a", "b", "c", fails="b")
    assert run(three, ledger, lambda: False) == LOST
    assert list(ledger.read()) == ["a", "b"]
    ledger.add({"id": "c", "status": "begun"})  # as where the process dies
    assert run(three, ledger, lambda: False) == 0
    found = ledger.read()
    assert [found[name]["status"] for name in "abc"] == ["passed", "failed", "failed"]
    assert found["c"]["text"] == "its process ended, or was ended, in this case"


CASES = """
import json, os, sys, time
from pathlib import Path
from tools.gpu.ledger import Ledger
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
ids = ["fine", "dies", "hangs", "last"]
if "--ledger" not in given:
    sys.exit(print(json.dumps(ids)))
number, of = map(int, given["--share"].split("/"))
ledger = Ledger(Path(given["--ledger"]))
ledger.died(ids[number::of])
for name in ids[number::of]:
    if name not in ledger.read():
        ledger.add({"id": name, "status": "begun"})
        {"dies": os.abort, "hangs": lambda: time.sleep(300)}.get(name, int)()
        ledger.add({"id": name, "status": "passed", "text": ""})
"""


@pytest.mark.parametrize("number", [1, 3])
def test_a_share_of_cases_is_started_again_where_it_died_or_hung(number: int, root: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "core")])}
    program = [sys.executable, "-c", CASES]
    shares = Shares([], tmp_path / "cases.jsonl", number, tmp_path, environment, program=program, stuck=2)
    notes = Notes(tmp_path / "notes.json")
    with pytest.raises(FailedError, match="its process ended, or was ended, in this case"):
        shares.run(notes)
    assert {name: notes.figures[name] for name in ("passed", "failed_cases", "done", "of")} == {
        "passed": 2, "failed_cases": 2, "done": 4, "of": 4,
    }  # fmt: skip
    assert set(notes.figures["failures"]) == {"dies", "hangs"}


def test_timings_are_told_as_ratios() -> None:
    timing = {"op": "gate", "dtype": "bfloat16", "tokens": 16, "native": 2e-6, "reference": 5e-6}
    found = figures({"perf/gate": {"status": "passed", "timings": [timing]}, "perf/add": {"status": "begun"}}, 3)
    assert found["times_as_fast"] == {"gate bfloat16 16": 2.5}
    assert (found["done"], found["of"], found["running"]) == (1, 3, ["perf/add"])


def test_the_wheels_are_all_of_cores_but_the_machines_own() -> None:
    names = closure(wanted())
    assert {"msgspec", "pyzmq", "starlette", "uvicorn", "uvloop", "pluggy", "click", "copier", "pytest"} <= set(names)
    assert {"pydantic-core", "hatchling", "h11"} <= set(names), "and what these need"
    assert not LEFT_OUT & set(names)
    assert not [name for name in names if name.startswith(("nvidia", "tessera", "ruff", "mypy"))]
    assert [name for name in names if name not in pins()] == []
