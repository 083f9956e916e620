"""Gold's case that starts a server: it serves, and what goes wrong is one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tessera.testing.conformance import Case, conformance_cases

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def servers_find_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


def served(platform: str) -> Case:
    return next(case for case in conformance_cases(platform, "gold") if case.id == "served/load")


def test_many_clients_get_the_answers_that_are_given_alone() -> None:
    assert served("strict").run().status == "passed"


def test_a_server_that_does_not_start_says_why() -> None:
    result = served("tests.platforms.broken:WideIndexPlatform").result()
    assert result.status == "failed"
    assert result.text.startswith("tessera serve did not start: ")
    assert "int64" in result.text
    assert "\n" not in result.line
