"""docs/plugins/failures.md: every line of its tables is what a person really sees."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.failures import ALONE, NAMED, OPENED, PLUGINS, Said, run
from tests.unit.conftest import Site

PAGE = Path(__file__).parents[2] / "docs/plugins/failures.md"
HEAD = ["case", "what happened", "message", "what to do", "code"]
# How a problem of one plugin comes to the user.
WRAPPED = re.compile(r"Platform '.*?' \(.*?\) cannot be used: (?P<said>.*)\.")


@dataclass(frozen=True)
class Row:
    case: str
    message: str
    advice: str
    code: int | None

    def matches(self, said: str) -> bool:
        return re.fullmatch(self.pattern, said) is not None

    @property
    def pattern(self) -> str:
        parts = re.split(r"\{[a-z]+\}", self.message)
        return ".+?".join(re.escape(part) for part in parts)


def read_rows() -> list[Row]:
    rows = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells != HEAD and not set(line) <= set("|-"):
            case, happened, message, advice, code = cells
            assert happened
            rows.append(Row(case, message.removeprefix("`").removesuffix("`"), advice, int(code) if code else None))
    return rows


ROWS = {row.case: row for row in read_rows()}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, libraries: Path, wheel: Callable[[str], Path]) -> dict[str, Said]:
    """What is said where all the plugins are installed and one is asked for."""
    site = Site(tmp_path_factory.mktemp("crowded"), libraries, wheel).install(*PLUGINS)
    said = run(site, *(["plan", "--platform", name] for name in NAMED.values()), seconds=4.0)
    opened = run(site, *(["conformance", *flags] for flags in OPENED.values()))
    return dict(zip((*NAMED, *OPENED), (*said, *opened), strict=True))


def check(case: str, said: Said) -> None:
    row, (code, message) = ROWS[case], said
    wrapped = WRAPPED.fullmatch(message)
    shown = message if wrapped is None or row.message.startswith("Platform ") else wrapped["said"]
    assert row.matches(shown), f"{case}: the page says\n  {row.message}\nand what is said is\n  {shown}"
    assert code == row.code
    assert "\n" not in message
    assert row.advice


def test_every_row_is_produced_and_what_is_produced_has_a_row() -> None:
    assert len(ROWS) == len(read_rows()), "a case has two rows"
    assert sorted(ROWS) == sorted((*NAMED, *OPENED, *ALONE))


@pytest.mark.parametrize("case", [*NAMED, *OPENED])
def test_a_row_among_many_plugins(case: str, crowded: dict[str, Said]) -> None:
    check(case, crowded[case])


@pytest.mark.parametrize("case", ALONE)
def test_a_row_of_its_own(case: str, site: Site) -> None:
    check(case, ALONE[case](site))


def test_a_row_that_says_something_else_is_a_failure() -> None:
    row = Row("made-up", "there is no module {module}; correct it", "", 5)
    assert row.matches("there is no module chip; correct it")
    assert not row.matches("there is no module chip; correct it!")
    assert not row.matches("there is no module ; correct it")
