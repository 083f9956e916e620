"""docs/gguf.md: the architectures and block types are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tessera.gguf.architectures import ARCHITECTURES
from tessera.gguf.blocks import BLOCK_TYPES
from tessera.gguf.vision.projectors import PROJECTORS

PAGE = (Path(__file__).parents[2] / "docs/gguf.md").read_text(encoding="utf-8")
FAMILIES = ("Q2_K to Q6_K", "the IQ formats")


def test_the_architectures_are_those_of_the_table() -> None:
    rows = _rows(PAGE.partition("## Images")[0])
    assert rows == {name: (architecture.name, "") for name, architecture in ARCHITECTURES.items()}


def test_the_towers_are_those_of_the_table() -> None:
    towers = {name: (one.architecture, ", ".join(one.texts)) for name, one in PROJECTORS.items()}
    assert _rows(PAGE.partition("## Images")[2]) == towers


def _rows(page: str) -> dict[str, tuple[str, str]]:
    """By the first column: the class in the second one, and the names in the third if there is one."""
    found = re.findall(r"^\| `([\w.-]+)` \| `(\w+)`[^|\n]*\|(?: (.*) \|)?$", page, re.MULTILINE)
    return {name: (served, texts.replace("`", "")) for name, served, texts in found}


def test_each_block_type_is_named() -> None:
    assert all(family in PAGE for family in FAMILIES)
    named = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", *re.findall(r"\b(?:[A-Z]+\d+(?:_\d)?)\b", PAGE)}
    for kind in BLOCK_TYPES.values():
        inner = kind.name.startswith(("I8", "I16", "I32", "I64", "F64", "Q8_K"))  # of other tensors than weights
        assert inner or kind.name.startswith("IQ") or kind.name in named, kind.name
