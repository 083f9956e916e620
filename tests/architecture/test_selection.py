"""Which tests a run takes: those without torch, and the day's share of the nightly ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.conftest import NIGHTLY_SHARES, cases_on, needs_torch, runs_on


@pytest.fixture
def suite(root: Path, tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copytree(root / "tools/checks", tmp_path / "tools/checks", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "tests/conftest.py", tmp_path / "tests")
    shutil.copy(root / "pyproject.toml", tmp_path)
    (tmp_path / "torch.py").touch()  # stands for it: what counts is who imports it
    (tmp_path / "tests/test_plain.py").write_text(
        "import sys\n\ndef test_plain():\n    assert 'torch' not in sys.modules\n", encoding="utf-8"
    )
    (tmp_path / "tests/test_torch.py").write_text("def test_torch():\n    import torch\n", encoding="utf-8")
    return tmp_path


def run(suite: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "tests", "-v", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("choice", "passed"), [("without", ["test_plain"]), ("only", ["test_torch"]), ("any", ["test_plain", "test_torch"])]
)
def test_a_run_takes_one_side_of_the_line_or_both(suite: Path, choice: str, passed: list[str]) -> None:
    status, output = run(suite, f"--torch={choice}")
    assert status == 0, output
    assert [name for name in ("test_plain", "test_torch") if f"::{name} PASSED" in output] == passed


def test_a_side_without_files_is_no_failure(suite: Path) -> None:
    (suite / "tests/test_torch.py").unlink()
    assert run(suite, "--torch=only")[0] == 0


def test_torch_by_a_back_door_is_refused(suite: Path) -> None:
    (suite / "helper.py").write_text("import torch\n", encoding="utf-8")
    (suite / "tests/test_hidden.py").write_text("import helper\n", encoding="utf-8")
    status, output = run(suite, "--torch=without")
    assert status != 0
    assert "torch was imported in a run without torch" in output


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "from safetensors.torch import save_file",
        "import tessera.reference.norm",
        "from tessera import LLM",
        "from tessera.executor import in_process",
        "from tessera_cpu import platform",
        "import tessera_cpu.platform",
    ],
)
def test_imports_that_load_torch(line: str) -> None:
    assert needs_torch(line)


@pytest.mark.parametrize(
    "line",
    [
        "import tessera",
        "from tessera.scheduler import Scheduler",
        "from tessera.executor.base import Executor",
        "import tessera_cpu",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ],
)
def test_imports_that_do_not(line: str) -> None:
    assert not needs_torch(line)


def test_every_nightly_test_has_its_day() -> None:
    names = [f"tests/test_x.py::test_{index}" for index in range(50)]
    days = [date(2026, 1, 1) + timedelta(days=day) for day in range(NIGHTLY_SHARES)]
    assert all(sum(runs_on(name, "share", day) for day in days) == 1 for name in names)
    assert len({tuple(runs_on(name, "share", day) for day in days) for name in names}) > NIGHTLY_SHARES // 2


def test_a_nightly_test_runs_when_asked_for(suite: Path) -> None:
    (suite / "tests/test_torch.py").unlink()
    text = "import pytest\n\n@pytest.mark.nightly\ndef test_long():\n    pass\n"
    (suite / "tests/test_long.py").write_text(text, encoding="utf-8")
    nodeid = "tests/test_long.py::test_long"
    start = date(2026, 1, 1)
    its_day = next(day for n in range(NIGHTLY_SHARES) if runs_on(nodeid, "share", day := start + timedelta(days=n)))
    day_after = its_day + timedelta(days=1)
    chosen = {
        arguments: f"{nodeid} PASSED" in run(suite, *arguments)[1]
        for arguments in [
            ("--nightly=all",),
            ("--nightly=none",),
            (),
            ("--nightly=share", f"--day={its_day}"),
            ("--nightly=share", f"--day={day_after}"),
        ]
    }
    assert list(chosen.values()) == [True, False, False, True, False]


@pytest.mark.parametrize(("cases", "days"), [(1, 4), (3, 4), (4, 4), (11, 4), (11, 1)])
def test_each_case_has_its_day_and_each_function_a_case_every_day(cases: int, days: int) -> None:
    names = [f"tests/test_x.py::test_cases[{case}]" for case in range(cases)] + ["tests/test_x.py::test_plain"]
    each_day = [cases_on(names, days, date(2026, 1, 1) + timedelta(days=day)) for day in range(days)]
    assert set().union(*each_day) == set(names)
    assert {len(chosen) - 1 for chosen in each_day} <= {max(1, cases // days), max(1, -(-cases // days))}


def test_functions_of_a_file_run_the_same_cases_on_a_day() -> None:
    names = [f"tests/test_x.py::test_{function}[{case}]" for function in "ab" for case in range(9)]
    chosen = cases_on(names, 4, date(2026, 1, 1))
    assert {name[-2] for name in chosen if "_a[" in name} == {name[-2] for name in chosen if "_b[" in name}


def test_a_run_takes_a_share_of_the_cases(suite: Path) -> None:
    text = "import pytest\n\n@pytest.mark.parametrize('case', range(6))\ndef test_cases(case):\n    pass\n"
    (suite / "tests/test_plain.py").write_text(text, encoding="utf-8")
    assert "6 passed" in run(suite, "--torch=without")[1]
    assert "2 passed, 4 deselected" in run(suite, "--torch=without", "--case-days=3")[1]
