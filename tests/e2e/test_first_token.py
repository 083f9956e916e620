"""From nothing to a served token on a chip that has a torch device: each command works, and nobody writes a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.first_token import Walk
from tools.gpu.chat import ANSWER

pytestmark = pytest.mark.compiler
MOST_LINES = 60
SECONDS = 180


def test_a_chip_serves_as_its_package_was_generated(tmp_path: Path) -> None:
    walk = Walk(tmp_path)
    assert ANSWER in walk.take()
    commands = [command.partition(" --")[0] for command in walk.seconds]
    assert commands[:3] == ["tessera plugin new fakechip", "pip install", "tessera platforms"]
    assert commands[3:] == ["tessera conformance", "tessera serve"]
    assert walk.lines() == 0 < MOST_LINES
    assert sum(walk.seconds.values()) < SECONDS
