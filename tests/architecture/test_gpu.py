"""tools/gpu.py where there is no GPU, and where a step fails; what tools/gpu_wheels.py leaves to the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.gpu import FailedError, obstacle, run
from tools.gpu_wheels import LEFT_OUT, closure, pins, wanted


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 1)])
def test_without_the_device_it_says_so_in_one_line(root: Path, tmp_path: Path, required: str, code: int) -> None:
    environment = {**os.environ, "TESSERA_REQUIRE_ALL": required}
    command = [sys.executable, str(root / "tools/gpu.py"), "--device", "nobodys", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout == "gpu did not run: torch finds no nobodys here\n"
    assert not (tmp_path / "out").exists()


def test_without_wheels_it_says_how_to_get_them(tmp_path: Path) -> None:
    assert obstacle("cpu", tmp_path) == f"no wheels in {tmp_path.name}: make gpu-wheels downloads them"
    (tmp_path / "some.whl").touch()
    assert obstacle("cpu", tmp_path) is None


def test_a_step_that_fails_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> dict:
        raise FailedError("it is\nbroken")

    first, second = run({"first": fails, "second": lambda: {"tokens_s": 12.3456}})
    assert (first.outcome, first.closing) == ("failed", "it is broken")
    assert (second.outcome, second.closing, second.figures) == ("passed", "tokens_s 12.3", {"tokens_s": 12.3456})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["first", "second"]


def test_the_wheels_are_all_of_cores_but_the_machines_own() -> None:
    names = closure(wanted())
    assert {"msgspec", "pyzmq", "starlette", "uvicorn", "uvloop", "pluggy", "click", "copier", "pytest"} <= set(names)
    assert {"pydantic-core", "hatchling", "h11"} <= set(names), "and what these need"
    assert not LEFT_OUT & set(names)
    assert not [name for name in names if name.startswith(("nvidia", "tessera", "ruff", "mypy"))]
    assert [name for name in names if name not in pins()] == []
