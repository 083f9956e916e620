"""README: its first chats end in the answers that they show, its programs run, its numbers are the tree's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.config.dual_encoder import DUAL_ENCODERS
from tessera.config.modalities import TOWERS
from tessera.config.retriever import RETRIEVERS
from tessera.plugins.builtin import NATIVE_MODELS
from tests.docs.first_chats import INSTALLATION, README, carry_out
from tests.docs.steps import blocks, commands
from tests.e2e.served import Served
from tools.causal_types import THROUGH, read_rows, written

SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
BOTH = "Models that read images and hear"
"""Its table has names too by which a whole is known, of which a part is served."""
MODELS = Path(__file__).parents[2] / "docs" / "models.md"
EMBEDDERS = RETRIEVERS.keys() | DUAL_ENCODERS.keys()
"""Architectures that read images and answer with vectors alone."""
ANSWERS = {"python": "42", "offline": "Hello"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served([], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


def test_the_first_lines_are_few() -> None:
    first = commands(next(blocks(README)))
    assert [command.text for command in first[:2]] == INSTALLATION
    assert sum(1 + len(command.shown) for command in first) == 6


def test_the_demo_answers_without_network(tmp_path: Path) -> None:
    """The block before it, whose model pip fetches, is carried out in tests/named."""
    carry_out(1, tmp_path, os.environ)


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


def _section(title: str) -> str:
    """Of docs/models.md."""
    _, _, section = MODELS.read_text(encoding="utf-8").partition(f"### {title}\n")
    return section.partition("\n#")[0]


@pytest.mark.parametrize(
    ("modality", "title", "number"),
    [
        ("image", "Models that read images", r"(\d+)\s+architectures\s+read\s+images"),
        ("video", "Models that watch videos", r"(\d+)\s+watch\s+videos"),
        ("audio", "Models that hear", r"(\d+)\s+hear"),
    ],
)
def test_each_architecture_with_a_tower_is_in_the_table(modality: str, title: str, number: str) -> None:
    sections = [_section(title)] + [_section(BOTH)] * (modality != "video")
    rows = [line for section in sections for line in section.splitlines() if line.startswith("| `") and "` |" in line]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1]) if name in TOWERS]
    towers = {name: tower for name, tower in TOWERS.items() if not tower.encoder_length and name not in EMBEDDERS}
    assert sorted(named) == sorted(name for name, tower in towers.items() if modality in tower.modalities)
    assert [int(said) for said in re.findall(number, README)] == [len(named)]


def test_each_architecture_that_embeds_images_is_in_the_table() -> None:
    rows = [line for line in _section("Models that embed images").splitlines() if line.startswith("| `")][1:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == EMBEDDERS
