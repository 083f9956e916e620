"""ARCHITECTURE.md and the glossary: the files that they name exist, and the list is the one that a request enters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.trace_request import SERVED_BY, as_written, names, short, trace

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/glossary.md"])
def test_each_file_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text.replace(as_written(TEXT), "")))
    assert len(named) > 25
    packages = [ROOT, ROOT / "tools/checks", ROOT / "core/tessera", *(ROOT / "core/tessera").glob("*/")]
    assert sorted(name for name in named if not any((package / name).is_file() for package in packages)) == []


def test_the_list_is_what_a_request_enters() -> None:
    request, timers = trace(idle_seconds=2.0)
    listed = names(as_written(TEXT))
    for title, name in SERVED_BY.items():
        entered = {short(file.name) for file in request[title]}
        by_timers = {short(file.name) for file in timers.get(title, ())}
        assert listed[name] ^ entered <= by_timers, "run python -m tools.trace_request --write"
