"""README's first chat, with a trained model that pip fetches."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tessera.cli.program import run
from tests.docs.first_chats import carry_out


def test_the_first_lines_lead_to_the_answer(tmp_path: Path) -> None:
    carry_out(0, tmp_path, os.environ)


def test_a_model_in_several_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "gemma3-270m", "--platform", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("gemma3-270m with a context of 32,768 tokens")


def test_a_gguf_file_is_quantized_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", "smollm2", str(tmp_path / "out"), "--scheme", "int8", "--windows", "2", "--platform", "cpu"]
    assert run(command) == 0
    said = capsys.readouterr().out
    assert float(re.findall(r"KL +(\S+) nats", said)[0]) < 0.03
    assert "9.72 bits per weight" in said
