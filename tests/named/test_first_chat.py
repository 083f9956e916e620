"""README's first chat, with a trained model that pip fetches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tessera.cli.program import run
from tests.docs.first_chats import carry_out


def test_the_first_lines_lead_to_the_answer(tmp_path: Path) -> None:
    carry_out(0, tmp_path, os.environ)


def test_a_model_in_several_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "gemma3-270m", "--platform", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("gemma3-270m with a context of 32,768 tokens")
