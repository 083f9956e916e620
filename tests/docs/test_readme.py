"""What README shows is run against the served demo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.served import Served

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", README.read_text(), re.DOTALL))
ANSWERS = {"curl": "Paris", "python": "42", "offline": "Hello"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory):
    with Served([], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def test_each_snippet_is_known() -> None:
    assert set(SNIPPETS) == set(ANSWERS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_snippet_answers_right(name: str, demo: Served) -> None:
    text = SNIPPETS[name].replace("127.0.0.1:8000", f"127.0.0.1:{demo.port}")
    command = ["bash", "-c", text] if name == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ANSWERS[name] in done.stdout
