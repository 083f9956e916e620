"""docs/cli.md is what the commands say; `python -m tools.cli_reference` writes it anew."""

from __future__ import annotations

import re

from tessera.cli.commands import BUILT_IN
from tools.cli_reference import PAGE, reference


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_every_command_has_its_place() -> None:
    titles = re.findall(r"^## tessera (.*)$", reference(), re.MULTILINE)
    assert set(BUILT_IN) <= set(titles)
    assert "bench serve" in titles
    assert "`-q, --quick TEXT`" in reference()
