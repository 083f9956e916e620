"""docs/structured-outputs.md: what it shows is run against the served demo, and its limits are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessera import sampling_params
from tessera.text import json_schema
from tests.e2e.served import Served

PAGE = (Path(__file__).parents[2] / "docs" / "structured-outputs.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
EXPECTED = {
    "curl": r'.*"content":"(yes|no)".*\n?',
    "pydantic": r"name=.{2,14} large=(True|False)\n",
    "client": rf"{DATE}\n",
    "offline": rf"(yes|no)\n{DATE}\n",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory):
    with Served([], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def test_each_snippet_is_known() -> None:
    assert set(SNIPPETS) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_snippet_gives_what_its_grammar_allows(name: str, demo: Served) -> None:
    text = SNIPPETS[name].replace("127.0.0.1:8000", f"127.0.0.1:{demo.port}")
    command = ["bash", "-c", text] if name == "curl" else [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(EXPECTED[name], done.stdout), done.stdout


def test_the_limits_are_those_of_the_code() -> None:
    rows = PAGE.split("| `json` |")[1].split("| `structural_tag`")[0]
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[0-9]+,[0-9]{3}|[0-9]{2,4}", rows)]
    most = sampling_params
    assert numbers == [
        most.MAX_SCHEMA_CHARS, json_schema.MAX_DEPTH, json_schema.MAX_SUBSCHEMAS, most.MAX_CHOICES,
        most.MAX_CHOICE_CHARS, *[most.MAX_GRAMMAR_CHARS] * 3,
    ]  # fmt: skip
