"""docs/triton-kernels.md is what the table of kernels says; `python -m tools.triton_targets --page` writes it."""

from __future__ import annotations

import json

from tools.triton_page import PAGE, cell, page
from tools.triton_targets import TABLE

SMALL = {"registers": 40, "spills": 0, "shared": 0, "matrix": 0, "setmaxnreg": False}
LARGE = {"registers": 255, "spills": 8, "shared": 49_152, "matrix": 32, "setmaxnreg": False}


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(TABLE.read_text(encoding="utf-8")))


def test_a_cell_says_what_a_kernel_takes() -> None:
    assert cell(SMALL) == "40 r"
    assert cell({**SMALL, "buffers": 2, "ahead": 4}) == "40 r, 2 buffers, 4 ahead"
    assert cell({**SMALL, "shared": 512}) == "40 r, 512 B"
    assert cell(LARGE) == "255 r, 48 KiB, 32 mma, **8 spilled**"
    assert cell({**LARGE, "spills": 0, "setmaxnreg": True}) == "255 r, 48 KiB, 32 mma, specialized"
    assert cell(None) == ""


def test_the_places_of_an_op_are_next_to_each_other() -> None:
    table = {"sm_80": {"_a of one x": SMALL, "_b of two": LARGE}, "sm_90": {"_a of one x": SMALL, "_c of one y": SMALL}}
    lines = page({**table, "gfx942": {"_b of two": SMALL}}).splitlines()
    rows = [line for line in lines if line.startswith("| `_")]
    assert rows == [
        "| `_a` | one x | 40 r | 40 r |",
        "| `_c` | one y |  | 40 r |",
        "| `_b` | two | 255 r, 48 KiB, 32 mma, **8 spilled** |  |",
        "| `_b` | two | 40 r |",
    ]
    assert any("Kernels that spill: 1 on sm_80." in line for line in lines)
