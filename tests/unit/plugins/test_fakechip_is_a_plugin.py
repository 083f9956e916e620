"""The example keeps to what plugins are told: few lines by hand, one package of core, nothing reassigned."""

from __future__ import annotations

from pathlib import Path

from tessera.plugins.check import check, read_package
from tessera.plugins.template import answers_of, count_written_lines
from tools.checks.sources import imports

FOLDER = Path(__file__).parents[3] / "tests/fakechip"
MOST_LINES = 500


def test_it_was_made_from_the_template() -> None:
    answers, _ = answers_of(FOLDER)
    assert (answers.name, answers.device, answers.registers) == ("fakechip", "fakechip", "torch_fakechip")
    assert set(count_written_lines(FOLDER)) >= {
        f"tessera_fakechip/{name}.py" for name in ("attention", "linear", "norms", "graphs")
    }


def test_attention_linear_and_graph_of_its_own_are_few_lines() -> None:
    assert sum(count_written_lines(FOLDER).values()) <= MOST_LINES


def test_it_breaks_nothing() -> None:
    assert check(read_package(FOLDER)) == []


def test_it_imports_one_package_of_core() -> None:
    used = {
        entry.target
        for source in read_package(FOLDER).sources
        for entry in imports(source.tree)
        if not source.is_test and not entry.type_checking and entry.target.partition(".")[0] == "tessera"
    }
    assert {".".join(name.split(".")[:2]) for name in used} == {"tessera.platform"}
