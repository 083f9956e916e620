"""What is compiled for TPUs that are not there, and that the page shows what came of it, and what the platform answers.
Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.platforms.on_page import answers_as_the_page_says
from tools.tpu import targets
from tools.tpu.targets import DAYS, HEAD, PAGE, PLACES, SAMPLING, TOPOLOGIES, Compiled, main

MADE = Compiled("v6e:2x2", 1, "decode", 3.0, 2.5e9, 2.4e9, 7e6, 1_200_000, 0, 0)
OTHER = "| v6e:2x2 | 1 | decode | 2.50 | 2.40 | 7 | 9.9 | 0 |"
RIGHT = OTHER.replace("9.9", "1.2")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, int, list[str]]]:
    """What main() has compiled; of each topology's decode step on one chip, MADE comes out."""
    calls: list[tuple[str, int, list[str]]] = []

    def compile_for(topology: str, chips: int, steps: list[str]) -> Iterator[Compiled]:
        calls.append((topology, chips, steps))
        if chips == 1 and "decode" in steps:
            yield replace(MADE, topology=topology)

    monkeypatch.setattr(targets, "compile_for", compile_for)
    monkeypatch.setattr(targets, "PAGE", tmp_path / "page.md")
    row = "| v5e:2x2 | 1 | decode | 1 | 2 | 3 | 4 | 0 |"
    (tmp_path / "page.md").write_text(f"Before\n\n{HEAD}|---|\n{row}\n{OTHER}\n\nAfter\n", encoding="utf-8")
    return calls


def test_sampling_is_compiled_for_the_first_topology_alone(asked: list[tuple[str, int, list[str]]]) -> None:
    main(["v6e:2x2", "v5e:2x2"])
    assert asked == [
        (name, chips, [*steps, SAMPLING] if name == "v6e:2x2" else [*steps])
        for name in ("v6e:2x2", "v5e:2x2")
        for chips, steps in PLACES.items()
    ]


def test_the_shares_of_a_few_days_are_the_whole(asked: list[tuple[str, int, list[str]]]) -> None:
    for day in range(DAYS):
        main(["v6e:2x2", "--day", str(date(2026, 1, 1) + timedelta(days=day))])
    compiled = [(chips, step) for _, chips, steps in asked for step in steps]
    assert sorted(compiled) == sorted((chips, step) for chips, steps in PLACES.items() for step in [*steps, SAMPLING])


def test_a_page_with_other_figures_fails_until_it_is_renewed(
    asked: list[tuple[str, int, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = targets.PAGE.read_text(encoding="utf-8")
    assert main(["v6e:2x2"]) == 1
    assert capsys.readouterr().err == "docs/evidence/platforms.md has other figures; --write renews them.\n"
    assert main(["v6e:2x2", "--write"]) == 0
    assert targets.PAGE.read_text(encoding="utf-8") == before.replace(OTHER, RIGHT)
    assert main(["v6e:2x2"]) == 0


def test_the_page_has_a_row_for_each_step() -> None:
    rows = PAGE.read_text(encoding="utf-8").split(HEAD)[1].partition("\n\n")[0].splitlines()[1:]
    assert [row.split(" | ")[:3] for row in rows] == [
        [f"| {name}", str(chips), step] for name in TOPOLOGIES for chips, steps in PLACES.items() for step in steps
    ]


def test_the_page_says_what_the_platform_answers() -> None:
    answers_as_the_page_says("tpu")
