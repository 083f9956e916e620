"""`tessera plugin new`: what it asks, what it refuses, and what lies in the folder then."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tessera.cli.program import run
from tessera.errors import ConfigError
from tessera.plugins import template
from tessera.plugins.template import TemplateAnswers, answers_of, count_written_lines, generate, template_folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


COMMON = {
    ".gitignore", ".github/workflows/ci.yml", "LICENSE", "README.md", "pyproject.toml", "tests/test_conformance.py",
    "tessera_chip/__init__.py", "tessera_chip/platform.py", "tessera_chip/probe.py", "tessera_chip/py.typed",
}  # fmt: skip
OP = {"attention", "graphs", "linear", "mlp", "norms", "rotary"}
RUNNER = {"llama", "runner", "shapes"}


@pytest.mark.parametrize(("depth", "own"), [("op", OP), ("runner", RUNNER)])
def test_a_package_of_a_depth_and_nothing_of_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], depth: str, own: set[str]
) -> None:
    assert run(["plugin", "new", "chip", "--depth", depth, "--into", str(tmp_path), "--yes"]) == 0
    folder = tmp_path / "tessera-chip"
    assert files(folder) == COMMON | {f"tessera_chip/{name}.py" for name in own}
    assert not [path for path in folder.rglob("*") if path.is_file() and "{{" in path.read_text(encoding="utf-8")]
    said = capsys.readouterr().out
    assert said.startswith(f"Wrote {folder}. Next:\n  cd {folder}\n  pip install -e")
    assert "tessera conformance --platform chip --level bronze" in said


def test_the_flags_are_in_the_package_and_on_record(tmp_path: Path) -> None:
    flags = ["--device", "privateuseone", "--registers", "torch_chip.boot", "--dtypes", "float16, float32"]
    assert run(["plugin", "new", "chip", *flags, "--into", str(tmp_path), "--yes"]) == 0
    folder = tmp_path / "tessera-chip"
    platform = (folder / "tessera_chip/platform.py").read_text(encoding="utf-8")
    assert 'dtypes=("float16", "float32")' in platform
    assert 'import_module("torch_chip.boot")' in platform
    assert 'TorchDevice(torch, "privateuseone", index)' in platform
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert [Path(text).name.split(">")[0] for text in project["build-system"]["requires"]] == ["hatchling"]
    answers, _ = answers_of(folder)
    assert answers == TemplateAnswers("chip", "op", "privateuseone", "torch_chip.boot", ("float16", "float32"))


def test_what_no_flag_says_is_asked_for_at_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prompt(text: str, **_: object) -> str:
        asked.append(text.splitlines()[-1])
        return {"Depth": "op", "torch's device type": "cpu"}.get(asked[-1], "float32" if "Dtypes" in text else "")

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", prompt)
    assert run(["plugin", "new", "chip", "--into", str(tmp_path)]) == 0
    assert [text.split()[0] for text in asked] == ["Depth", "torch's", "Module", "Dtypes"]
    assert "HostDevice" in (tmp_path / "tessera-chip/tessera_chip/platform.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["Chip"], "lower-case letters and digits, a letter first, not 'Chip'"),
        (["a-b"], "not 'a-b'"),
        (["x" * 25], "up to 24 lower-case letters"),
        (["cpu"], "the name 'cpu' is taken"),
        (["chip", "--device", "chip:0"], "torch's name of a device"),
        (["chip", "--registers", "import os; x"], "is a module such as torch_mychip, not 'import os; x'"),
        (["chip", "--dtypes", "int8"], "there is no dtype 'int8'; choose from bfloat16, float16, float32"),
        (["chip", "--dtypes", "float32,float32"], "name each dtype once"),
        (["chip", "--depth", "runner", "--dtypes", "bfloat16"], "computes in float32 alone"),
        (["chip", "--depth", "runner", "--device", "cpu"], "--device and --registers are for depth op"),
    ],
)
def test_what_does_not_hold_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["plugin", "new", *arguments, "--into", str(tmp_path), "--yes"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not files(tmp_path)


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tessera-chip").mkdir()
    (tmp_path / "tessera-chip/mine").touch()
    assert run(["plugin", "new", "chip", "--into", str(tmp_path), "--yes"]) == 2
    assert "exists already; remove it, or choose another place with --into" in capsys.readouterr().err
    assert files(tmp_path) == {"tessera-chip/mine"}


def test_without_copier_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "copier", None)
    with pytest.raises(ConfigError, match=r"pip install 'tessera-llm\[plugin\]'"):
        generate(TemplateAnswers("chip", "op", "chip", "", ("float32",)), tmp_path / "chip")


def test_the_template_is_found_in_a_wheel_and_in_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (template_folder() / "copier.yml").is_file()
    monkeypatch.setattr(template.tessera, "__file__", str(tmp_path / "tessera" / "__init__.py"))
    (tmp_path / "tessera" / "plugins_template").mkdir(parents=True)
    assert template_folder() == tmp_path / "tessera" / "plugins_template"


def test_lines_written_by_hand_are_counted_against_the_package_as_generated(tmp_path: Path) -> None:
    folder = tmp_path / "chip"
    generate(TemplateAnswers("chip", "op", "cpu", "", ("float32",)), folder)
    assert count_written_lines(folder) == {}
    linear = folder / "tessera_chip/linear.py"
    text = linear.read_text(encoding="utf-8").replace('return "not written yet"', "return None  # all of them")
    linear.write_text(
        text.replace("raise NotImplementedError", "y = x @ weight\n\n            # done\n            return y")
    )
    (folder / "tessera_chip/own.py").write_text('"""Own."""\n\n# nothing\nX = "#"  # said\n')
    (folder / ".venv").mkdir()
    (folder / ".venv/left.py").write_text("x = 1\n")
    assert count_written_lines(folder) == {"tessera_chip/linear.py": 3, "tessera_chip/own.py": 2}


def test_they_are_counted_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "chip"
    generate(TemplateAnswers("chip", "op", "cpu", "", ("float32",)), folder)
    (folder / "tessera_chip/own.py").write_text("X = 1\n\n\nY = 2\n")
    assert run(["plugin", "lines", str(folder)]) == 0
    assert capsys.readouterr().out == "     2  tessera_chip/own.py\n     2  lines written by hand\n"


@pytest.mark.parametrize(
    "text", ["", "[tool.tessera]\ngenerated = 1\n", "[tool", '[tool.tessera.generated]\nname = "a"\n']
)
def test_lines_of_what_was_not_generated_are_not_counted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert run(["plugin", "lines", str(tmp_path)]) == 2
    assert "has no [tool.tessera.generated] in a pyproject.toml" in capsys.readouterr().err
