from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tools.machine_speed import MAX_SLOWDOWN, REFERENCE_S, slowdown
from tools.run_stages import INCLUDES, Result, Stage, main, read_stages, run_stages

PASSES = Stage("passes", "python -c \"print('one'); print('== 3 passed ==')\"", "test")
FAILS = Stage("fails", "python -c \"import sys; print('broke'); sys.exit(3)\"", "test")


def outcomes(results: list[Result]) -> list[str]:
    return [result.outcome for result in results]


def program(table: Path, command: str) -> list[str]:
    """That runs a table's stages in its folder, as on the machine of the budgets."""
    where = ["--table", str(table), "--root", str(table.parent)]
    return [sys.executable, "-m", "tools.run_stages", command, *where, "--slowdown", "1"]


def test_the_table_is_whole(root: Path) -> None:
    table = root / "tools/stages.toml"
    names = {command: [stage.name for stage in read_stages(table, command)] for command in INCLUDES}
    assert names["check"] == ["lint", "format", "types", "imports", "neutrality", "unit"]
    assert names["test"] == [
        *names["check"],
        "engine",
        "unit with torch",
        "architecture",
        "fakechip",
        "models",
        "server",
        "docs",
        "dist",
        "e2e",
        "e2e fakechip",
    ]
    assert names["test-all"][: len(names["test"])] == names["test"]
    assert names["nightly"] == [
        "nightly",
        "nightly fakechip",
        "nightly gpus",
        "nightly triton",
        "nightly tpu",
        *(f"nightly {name}" for name in ("gaudi", "ascend", "neuron", "spyre", "torch-tpu")),
        "templates",
        "nightly triton targets",
        "triton versions",
        "torch api",
        "npu shapes",
        "aarch64",
        "nightly tpu targets",
        "torch-xla",
        "structured soak",
        "nightly field fuzz",
        "http fuzz",
        "rolling restart",
        "image",
        "worst requests",
        "host",
    ]
    assert set(names["test-all"]).isdisjoint(names["nightly"])


def test_every_stage_but_those_of_nightly_has_a_budget(root: Path) -> None:
    assert all(stage.budget < 1000 for stage in read_stages(root / "tools/stages.toml", "test-all"))


def test_every_folder_of_tests_is_in_a_stage(root: Path) -> None:
    covered = {path for stage in read_stages(root / "tools/stages.toml", "test-all") for path in stage.paths}
    folders = {
        path.parent for pattern in ("tests/*/", "platforms/*/tests/") for path in root.glob(f"{pattern}**/test_*.py")
    }
    roots = {
        "/".join(folder.relative_to(root).parts[: 2 if folder.is_relative_to(root / "tests") else 3])
        for folder in folders
    }
    assert roots <= covered


def test_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    table = tmp_path / "stages.toml"
    table.write_text('[[stage]]\nname = "a"\ncommand = "true"\nwhen = "test"\nneed = ["gcc"]\n', encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match="need"):
        read_stages(table, "test")


def test_the_last_line_of_a_stage_is_kept(tmp_path: Path) -> None:
    (result,) = run_stages([PASSES], tmp_path, require_all=False)
    assert (result.outcome, result.closing) == ("passed", "== 3 passed ==")
    assert result.seconds > 0


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.run_stages._processors", lambda: 2)


@pytest.mark.usefixtures("two_processors")
def test_the_first_failure_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What runs beside it ends by itself."""
    slow = Stage("slow", "python -c \"import time; time.sleep(3); print('done')\"", "test")
    results = run_stages([slow, FAILS, PASSES], tmp_path, require_all=False)
    assert results[1].closing == "broke"
    assert outcomes(results) == ["passed", "failed", "not reached"]
    printed = capfd.readouterr().out
    assert printed.index("---- fails failed") < printed.index("---- slow passed")


@pytest.mark.usefixtures("two_processors")
def test_two_stages_run_side_by_side_and_their_output_is_not_mixed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for what the other writes."""
    meets = "sh -c 'echo one; touch {0}; until test -e {1}; do sleep 0.01; done; echo two; sleep 0.1; echo three'"
    stages = [Stage(f"{mine} stage", meets.format(mine, other), "test", minutes=1) for mine, other in ("ab", "ba")]
    assert outcomes(run_stages(stages, tmp_path, require_all=True)) == ["passed", "passed"]
    printed = capfd.readouterr().out.splitlines()
    for name in ("a stage", "b stage"):
        place = next(at for at, line in enumerate(printed) if line.startswith(f"---- {name} passed after"))
        assert printed[place + 1 : place + 4] == ["one", "two", "three"]


@pytest.mark.usefixtures("two_processors")
def test_nothing_runs_beside_a_stage_that_is_alone(tmp_path: Path) -> None:
    """Each fails if another is under way."""
    script = "sh -c 'mkdir running && sleep 0.3 && rmdir running'"
    quiet = Stage("quiet", script, "test", alone=True)
    stages = [quiet, msgspec.structs.replace(quiet, alone=False), quiet, quiet]
    assert outcomes(run_stages(stages, tmp_path, require_all=True)) == ["passed"] * 4


def test_stages_share_the_workers_except_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.run_stages._processors", lambda: 4)
    shares, quiet = (Stage("counts", "echo {workers}", "test", alone=alone) for alone in (False, True))
    results = run_stages([shares, quiet, shares, shares], tmp_path, require_all=True)
    assert [result.closing for result in results] == ["2", "4", "2", "4"]
    monkeypatch.setattr("tools.run_stages._processors", lambda: 1)
    assert [result.closing for result in run_stages([shares, shares], tmp_path, require_all=True)] == ["1", "1"]


@pytest.mark.parametrize(
    ("stage", "obstacle"),
    [
        (
            Stage("native", "true", "test", needs=("no-such-compiler|no-such-other",)),
            "needs no-such-compiler or no-such-other",
        ),
        (
            Stage("library", "true", "test", needs=("package no_such_library",)),
            "needs the Python package no_such_library",
        ),
        (Stage("folder", "pytest {paths}", "test", paths=("tests/none",)), "no tests/none"),
    ],
)
def test_a_stage_that_cannot_run_says_so_and_fails_where_all_are_required(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], stage: Stage, obstacle: str
) -> None:
    assert outcomes(run_stages([stage, PASSES], tmp_path, require_all=False)) == ["did not run", "passed"]
    assert f"---- {stage.name} did not run: {obstacle}\n" in capfd.readouterr().out
    assert outcomes(run_stages([stage, PASSES], tmp_path, require_all=True)) == ["failed", "not reached"]


def test_either_of_two_programs_will_do(tmp_path: Path) -> None:
    stage = msgspec.structs.replace(PASSES, needs=("no-such-compiler|sh",))
    assert outcomes(run_stages([stage], tmp_path, require_all=True)) == ["passed"]


def test_folders_that_exist_are_run(tmp_path: Path) -> None:
    (tmp_path / "tests/here").mkdir(parents=True)
    stage = Stage("some", "echo {paths} {workers}", "test", paths=("tests/here", "tests/none"))
    (result,) = run_stages([stage], tmp_path, require_all=True)
    assert result.closing.split()[0] == "tests/here"
    assert int(result.closing.split()[1]) >= 1


def test_python_keeps_what_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "module.py").touch()
    (result,) = run_stages([Stage("imports", "python -c 'import module'", "test")], tmp_path, require_all=True)
    assert result.outcome == "passed"
    assert list(tmp_path.glob("__pycache__/module.*.pyc"))


def test_a_stage_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    stage = Stage("hangs", "sh -c 'echo started; sleep 60 & sleep 60'", "test", minutes=0.5 / 60)
    (result,) = run_stages([stage], tmp_path, require_all=False)
    assert result.outcome == "failed"
    assert result.closing == "killed, or ended after its 0.5 s"
    assert result.seconds < 30


def test_a_slower_machine_has_longer_budgets_and_limits() -> None:
    slower = msgspec.structs.replace(PASSES, budget=30.0, minutes=2.0).on_slower(1.5)
    assert (slower.budget, slower.minutes) == (45.0, 3.0)


def test_no_machine_counts_as_faster_or_as_more_than_thrice_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.2, 9.0, 1.0, 0.1, 0.2, 0.3, 9.0, 9.0, 0.1])
    monkeypatch.setattr("tools.machine_speed._round_s", lambda at_once: next(seconds))
    assert [slowdown(2) for _ in range(3)] == [1.2 / REFERENCE_S, 1.0, MAX_SLOWDOWN]


def test_its_speed_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.machine_speed.WORK", "print(2 * 0.55)")
    assert slowdown(2) == 2.0


@pytest.mark.parametrize(
    ("command", "measures", "status"), [("test-all", [1.0, 1.0], 1), ("test-all", [1.0, 100.0], 0), ("check", [], 0)]
)
def test_a_machine_that_slows_down_is_measured_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, measures: list[float], status: int
) -> None:
    table, measured = tmp_path / "stages.toml", iter(measures)
    stage = f'name = "sleeps"\ncommand = "sleep 0.3"\nwhen = "{command}"\nbudget = 0.2\n'
    table.write_text(f"[[stage]]\n{stage}", encoding="utf-8")
    monkeypatch.setattr("tools.run_stages.slowdown", lambda at_once: next(measured))
    monkeypatch.setattr("sys.argv", ["run_stages", command, "--table", str(table), "--root", str(root)])
    assert main() == status
    assert not [*measured]


def test_what_a_stage_leaves_running_fails_it(tmp_path: Path) -> None:
    stage = Stage("leaves", "sh -c 'sleep 60 & echo over'", "test", minutes=0.5 / 60)
    (result,) = run_stages([stage], tmp_path, require_all=False)
    assert (result.outcome, result.closing) == ("failed", "killed, or ended after its 0.5 s")
    assert result.seconds < 30


@pytest.mark.parametrize(("command", "status"), [("true", 0), ("false", 1)])
def test_the_program_prints_a_table_and_its_exit_status_tells(
    root: Path, tmp_path: Path, command: str, status: int
) -> None:
    table = tmp_path / "stages.toml"
    table.write_text(f'[[stage]]\nname = "only"\ncommand = "{command}"\nwhen = "check"\n', encoding="utf-8")
    done = subprocess.run(program(table, "check"), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status
    last = [line.split()[0] for line in done.stdout.splitlines()[-3:]]
    assert last == ["----", "only", "total"]


def test_an_interrupt_ends_the_stages_and_prints_their_output(root: Path, tmp_path: Path) -> None:
    table = tmp_path / "stages.toml"
    command = "sh -c 'echo begun; touch begun; sleep 60'"
    table.write_text(f'[[stage]]\nname = "long"\ncommand = "{command}"\nwhen = "check"\n', encoding="utf-8")
    argv = program(table, "check")
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        start = time.perf_counter()
        run.send_signal(signal.SIGINT)
        printed, _ = run.communicate(timeout=30)
    assert time.perf_counter() - start < 30
    assert run.returncode
    assert printed.splitlines()[-1] == "begun"


@pytest.mark.parametrize(("command", "status"), [("test", 0), ("test-all", 1)])
def test_a_stage_over_its_budget_fails_in_test_all_after_the_others_ran(
    root: Path, tmp_path: Path, command: str, status: int
) -> None:
    table = tmp_path / "stages.toml"
    table.write_text(
        '[[stage]]\nname = "slow"\ncommand = "sleep 0.2"\nwhen = "test"\nbudget = 0.1\n'
        '[[stage]]\nname = "fast"\ncommand = "true"\nwhen = "test"\nbudget = 60\n',
        encoding="utf-8",
    )
    done = subprocess.run(program(table, command), cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == status
    slow, fast, _ = done.stdout.splitlines()[-3:]
    assert "over budget" in slow
    assert fast.split()[2:] == ["60", "passed"]
