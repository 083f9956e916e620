"""docs/platforms.md: which platforms have run on their hardware, and how each is installed, checked and served."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from tools.platform_answers import PLACES
from tools.platform_table import PAGE as EVIDENCE
from tools.platform_table import STATES, rows_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/platforms.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = {*PLACES, "torch-xla"}
FOLDERS = {"torch-tpu": "xla", "torch-xla": "xla"}


def sections() -> dict[str, str]:
    """By the platform's name."""
    parts = re.findall(r"^## [^\n]*?: (`[^\n]*`)\n(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    return {name: text for names, text in parts for name in re.findall(r"`([\w-]+)`", names)}


@pytest.mark.parametrize(
    ("text", "head"),
    [(PAGE, "| Platform | Chips | State |"), (README, "| Platform | Chips | Has run on that hardware |")],
    ids=["page", "readme"],
)
def test_a_table_says_of_each_platform_whether_it_has_run(text: str, head: str) -> None:
    states = {row[0].strip("`"): row[3] for row in rows_of(EVIDENCE.read_text(encoding="utf-8"), STATES)}
    column = [title.strip() for title in text[text.index(head) :].splitlines()[0].split("|")[1:]].index(
        "Has run on that hardware"
    )
    shown: dict[str, list[str]] = {}
    for row in rows_of(text, head):
        shown.setdefault(re.findall(r"`([\w-]+)`", row[0])[0], []).append(row[column])
    assert set(shown) == NAMES
    for name, cells in shown.items():
        never = all(cell.startswith("**no**") for cell in cells)
        assert never == states[name].startswith("never"), name


def test_each_platform_is_installed_checked_and_served() -> None:
    assert set(sections()) == NAMES
    for name, text in sections().items():
        (commands, *_) = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        *_, install, check, serve = commands.splitlines()
        assert check.endswith("tessera platforms")
        assert " serve " in serve
        if name not in ("cpu", "torch-xla"):
            assert f"--platform {name} " in serve
            assert f"[{FOLDERS.get(name, name)}]" in install or f"tessera-{FOLDERS.get(name, name)}[" in install


def test_each_extra_exists() -> None:
    named = re.findall(r"'tessera-(\w+)\[(\w+)\]'", PAGE)
    assert len(named) >= len(PLACES) - 1
    for package, extra in named:
        folder = ROOT if package == "llm" else ROOT / "platforms" / package
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert extra in project["optional-dependencies"], f"tessera-{package}[{extra}]"


def test_the_sets_of_kernels_are_those_that_are_built() -> None:
    variants = runpy.run_path(str(ROOT / "platforms/cpu/csrc/build.py"))["VARIANTS"]
    (said,) = re.findall(r"set `TESSERA_CPU_KERNELS` to (.*?)\. ", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", said)) == {"torch"} | {name for names in variants.values() for name in names}
