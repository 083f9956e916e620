"""docs/troubleshooting.md: the messages that it names are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SOURCE = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "core/tessera").rglob("*.py"))
SOURCE += inspect.getsource(click.exceptions)
MESSAGES = [
    message
    for cell in re.findall(r"^\| ([^|]*`[^|]*) \|", PAGE, re.MULTILINE)
    for message in re.findall(r"`([^`]+)`", cell)
]


def longest_constant(message: str) -> str:
    """The longest part of a message that does not vary."""
    return max(re.split(r"'?\.\.\.'?|'|\bNAME\b|\bN\b|8000|127\.0\.0\.1", message), key=len).strip("; ")


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_code(message: str) -> None:
    assert len(MESSAGES) > 8
    assert longest_constant(message) in SOURCE
