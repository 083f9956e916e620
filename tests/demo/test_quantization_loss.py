"""What quantised weights may cost the bundled model, and the table that says it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tessera.demo import folder
from tessera.engine.scores import Scores, loss
from tessera.text.scored_texts import ScoredText
from tests.platforms.cpu_kernels import available
from tools.quantization_loss.__main__ import HEAD, WAYS, answered, main, table

PLATFORM = "tessera_cpu.platform:CpuPlatform"


def test_the_table_of_the_demo() -> None:
    rows = table(str(folder()), PLATFORM, "bfloat16", texts=20, questions=0)
    assert [row[:2] for row in rows] == [(name or "none", kept) for name, kept in WAYS]
    bits, perplexity, divergence = ([float(row[column]) for row in rows] for column in (2, 3, 4))
    agreement = [float(row[5].rstrip("%")) for row in rows]
    beside = 0 if available() else 1.25  # a table, where oneDNN packs the head
    assert 16 <= bits[0] == bits[3] <= 16 + beside
    assert 8 < bits[1] == bits[4] < 8.5
    assert 4 < bits[2] < (6 if available() else 4.5 + beside)
    assert perplexity[0] < 1.05
    assert max(perplexity) < 1.02 * perplexity[0]
    assert divergence[0] == 0 < divergence[1] < divergence[2] < 0.01
    assert divergence[3] < 0.001  # with floats beside the cache it may round to nothing
    assert divergence[4] < 0.001
    assert agreement[0] == 100
    assert min(agreement) > 98


@pytest.mark.parametrize(("name", "kept", "least"), [("int8", "auto", 94), ("int4", "auto", 92), (None, "int8", 94)])
def test_the_demo_still_answers(name: str | None, kept: str, least: int) -> None:
    """Of its first hundred held-out questions it answers 96 without."""
    assert answered(str(folder()), PLATFORM, "bfloat16", name, kept, 100) >= least


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["loss", "--platform", PLATFORM, "--texts", "2", "--questions", "0"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"| {' | '.join(HEAD)} |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name or 'none'}" for name, _ in WAYS]


def test_figures_of_distributions_that_are_known() -> None:
    texts = [ScoredText([0, 1, 0], [True, True, False])]
    before, after = np.log([[0.5, 0.5], [0.1, 0.9]]), np.log([[0.75, 0.25], [0.9, 0.1]])
    found = loss(texts, Scores([before], 16.0), Scores([after], 8.0))
    assert found.perplexity == pytest.approx(4.0)
    assert found.divergence == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25))
    assert found.agreement == 1.0
