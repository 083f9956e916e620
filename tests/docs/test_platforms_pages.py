"""docs/plugins/platforms.md: its links lead to the names that it shows, and each table has every platform."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/plugins/platforms.md"
TEXT = PAGE.read_text(encoding="utf-8")
PLATFORMS = {
    "`cpu`", "`cuda`", "`rocm`", "`tpu`", "`xpu`", "`gaudi`", "`ascend`", "`neuron`", "`spyre`", "`reference`",
    "`torch-tpu`", "`torch-xla`", "`strict`", "NumPy runner", "`fakechip`",
}  # fmt: skip
LINKS = re.findall(r"\[`([^`]+)`\]\((?:<([^>]+)>|([^)]+))\)", TEXT)


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a name, such as "Class.method"."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jinja":
        return re.search(rf"^ *(def|class) {re.escape(name)}\b", text, re.MULTILINE) is not None
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        named = [one for one in body if part in names(one)]
        if not named:
            return False
        body = getattr(named[0], "body", [])
    return True


def names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@pytest.mark.parametrize("link", dict.fromkeys(LINKS), ids="-".join)
def test_a_link_leads_to_what_it_names(link: tuple[str, str, str]) -> None:
    shown, odd, plain = link
    path = (PAGE.parent / (odd or plain)).resolve()
    assert path.exists(), path
    if "/" in shown or path.is_dir():
        assert path.as_posix().endswith(shown)
    else:
        assert defines(path, shown), f"{path.name} has no {shown}"


def test_each_table_has_every_platform() -> None:
    tables = [part for part in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE) if part.startswith("| Platform ")]
    assert len(tables) == len(re.findall(r"^\| Platform ", TEXT, re.MULTILINE)) >= 6
    for table in tables:
        rows = [row.split("|")[1].strip() for row in table.splitlines()[2:]]
        assert sorted(name for row in rows for name in row.split(", ")) == sorted(PLATFORMS), table.splitlines()[0]


def test_a_name_that_is_not_there_is_found_out() -> None:
    steps = Path(__file__)
    assert defines(steps, "names")
    assert defines(steps, "PLATFORMS")
    assert not defines(steps, "name")
    assert not defines(steps, "names.inner")
