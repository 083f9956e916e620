"""The table of what each platform package has, in docs/evidence/platforms.md, is what the tree says, and what `cpu`
answers. What the others answer is compared in their stages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tools import platform_table
from tools.platform_answers import PLACES
from tools.platform_table import HEAD, PACKAGES, PAGE, STATES, ask, names, on_page, page, rows_of, verified

ROOT = Path(__file__).parents[2]
TEXT = PAGE.read_text(encoding="utf-8")
reassigned_by = cache(platform_table.reassigned_by)  # which reads every file of a package
COLUMNS = [title.strip() for title in HEAD.strip("|\n").split("|")]


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_table, "reassigned_by", reassigned_by)


def cell(text: str, name: str, column: str) -> str:
    (found,) = (cells for cells in rows_of(text, HEAD) if cells[0] == f"`{name}`")
    return found[COLUMNS.index(column)]


def test_the_page_has_the_table_that_the_tree_makes() -> None:
    assert page(TEXT, {}) == TEXT, "run python -m tools.platform_table"


def test_the_page_says_what_cpu_answers() -> None:
    assert tuple(ask("cpu")) == on_page(TEXT)["cpu"], "run python -m tools.platform_table --ask cpu"


def test_each_package_that_registers_a_platform_has_a_row() -> None:
    projects = ROOT.glob("platforms/*/pyproject.toml")
    registered = [file.parent.name for file in projects if "entry-points.tessera" in file.read_text(encoding="utf-8")]
    assert sorted(names(TEXT)) == sorted(PLACES)
    assert sorted(PACKAGES.get(name, name) for name in PLACES) == sorted(registered)


def test_no_package_reassigns_an_attribute() -> None:
    assert [cell(TEXT, name, "Attributes reassigned") for name in PLACES] == ["0"] * len(PLACES)


def test_one_that_does_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = {"tessera_gaudi": ["file.py:1: torch.add = None"]}
    monkeypatch.setattr(platform_table, "reassigned_by", lambda package, root: patched.get(package.name, []))
    shown = page(TEXT, {})
    assert [name for name in PLACES if cell(shown, name, "Attributes reassigned") == "1"] == ["gaudi"]


def test_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_table, "count", lambda package: 100 * len(package.name) - 49)
    shown = page(TEXT, {})
    assert cell(shown, "gaudi", "Lines of Python") == "1,300"
    assert cell(shown, "cuda", "Lines of Python") == "1,200 + 1,400 of `triton`"


def test_answers_replace_those_of_the_page() -> None:
    shown = page(TEXT, {"gaudi": ("bronze", "7 / 2 / 1", "none")})
    assert on_page(shown) == {**on_page(TEXT), "gaudi": ("bronze", "7 / 2 / 1", "none")}
    ops = 10 + int(cell(shown, "gaudi", "By reference"))
    assert ops == sum(map(int, [*cell(TEXT, "cpu", COLUMNS[2]).split(" / "), cell(TEXT, "cpu", "By reference")]))


def test_a_platform_that_was_never_asked_is_told() -> None:
    (row,) = (line for line in TEXT.splitlines() if line.startswith("| `xpu` | silver"))
    with pytest.raises(SystemExit, match="no answers of xpu: add --ask xpu"):
        page(TEXT.replace(f"{row}\n", ""), {})


@pytest.mark.parametrize(
    ("cells", "ways"),
    [
        ("never | no | no", ""),
        ("never; nothing of it | nothing to compile | a stand-in", "emulated"),
        ("on a card | its kernels | by an interpreter", "run on hardware, compiled, emulated, interpreted"),
        ("never | as for `first` | as for `first`; its torch too", "compiled, emulated, interpreted"),
    ],
)
def test_ways_of_verifying_are_those_of_the_first_table(cells: str, ways: str) -> None:
    first = "| `first` | d | s | never | its kernels | by an interpreter |"
    assert verified("mine", f"{STATES}|---|\n{first}\n| `mine` | d | s | {cells} |\n\n") == ways


def test_hardware_is_claimed_for_the_host_alone() -> None:
    assert [name for name in PLACES if "hardware" in cell(TEXT, name, "Verified")] == ["cpu"]
