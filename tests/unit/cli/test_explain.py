"""Why a platform is chosen and each other is not, with real distributions."""

from __future__ import annotations

import pytest

from tessera.cli.platforms import columns

EXPLAIN = """
import sys
from tessera.cli.platforms import explained_platform
from tessera.errors import TesseraError
try:
    path, levels, text = explained_platform(sys.argv[1] or None)
    print(path, text, sep="\\n")
except TesseraError as error:
    print("refused:", error)
"""


def verdicts(text):
    """By platform: the third column, which no other has words of."""
    rows = [line.lstrip("* ").split("  ") for line in text.splitlines() if " tessera-fixture-" in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[2] for row in cells}


def test_of_each_platform(site):
    text = site.install("host", "good", "absent").run("platforms", "--explain").stdout
    assert "VERDICT" in text
    assert verdicts(text) == {
        "absent": "cannot run here",
        "good": "chosen: the highest score",
        "host": "below the 50 of 'good'",
    }
    assert "VERDICT" not in site.run("platforms").stdout


def test_where_nothing_is_chosen(site):
    text = site.install("good", "rival", "raising").run("platforms", "--explain").stdout
    assert verdicts(text) == {
        "good": "nothing is chosen",
        "rival": "nothing is chosen",
        "raising": "cannot be used",
    }
    assert "the driver is older than the library" in text


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("", "fixture_good:Nowhere", {"good": "chosen: the highest score", "host": "below the 50 of 'good'"}),
        ("host", "fixture_host:Nowhere", {"good": "--platform names 'host'", "host": "chosen: --platform host"}),
    ],
)
def test_before_serving(site, name, path, expected):
    text = site.install("host", "good").run(name, program=EXPLAIN).stdout
    assert text.splitlines()[0] == path
    assert verdicts(text) == expected


def test_what_cannot_be_chosen_is_refused_as_without_explaining(site):
    site.install("good", "rival", "absent")
    assert "share the score 50; choose one" in site.run("", program=EXPLAIN).stdout
    assert "refused: There is no platform 'goood'; there is good." in site.run("goood", program=EXPLAIN).stdout
    assert "cannot run here" in site.run("absent", program=EXPLAIN).stdout


def test_columns_are_as_wide_as_their_widest_cell_but_the_last():
    assert columns([["a", "b", "c"], ["long", "", "as long as it likes"]]) == [
        "a     b  c",
        "long     as long as it likes",
    ]
