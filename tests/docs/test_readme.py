"""README: its first lines are followed to the answer that they show, its programs run, its numbers are the tree's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.plugins.builtin import NATIVE_MODELS
from tests.docs.steps import Shell, blocks, commands
from tests.e2e.served import Served, free_port
from tools.causal_types import THROUGH, read_rows, written

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
ANSWERS = {"python": "42", "offline": "Hello"}
INSTALLATION = ["git clone URL-OF-THIS-REPOSITORY tessera && cd tessera", "make install"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served([], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def test_the_first_lines_lead_to_the_answer(tmp_path: Path) -> None:
    first = commands(next(blocks(README)))
    assert [command.text for command in first[:2]] == INSTALLATION  # not run: this environment has it
    assert sum(1 + len(command.shown) for command in first) == 6
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "tessera").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    (programs / "tessera").chmod(0o755)
    (tmp_path / ".curlrc").write_text("silent\n")  # as it is at a terminal
    port = str(free_port())
    page = README.replace("tessera serve &", "tessera serve --port 8000 &").replace("8000", port)
    with Shell(tmp_path, {**os.environ, "CURL_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}) as shell:
        for command in commands(next(blocks(page)))[2:]:
            assert command.shown
            shell.run(command)


def test_each_snippet_is_known() -> None:
    assert set(SNIPPETS) == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_snippet_answers_right(name: str, demo: Served) -> None:
    text = SNIPPETS[name].replace("127.0.0.1:8000", f"127.0.0.1:{demo.port}")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ANSWERS[name] in done.stdout


def test_the_numbers_of_models_are_those_of_the_tables() -> None:
    (numbers,) = re.findall(r"(\d+) native architectures .*? and (\d+)\s+more model types", README, re.DOTALL)
    through = sum(row.how == THROUGH for row in read_rows(written()))
    assert [int(number) for number in numbers] == [len(NATIVE_MODELS), through]
