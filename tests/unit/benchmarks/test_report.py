from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.parts import PARTS
from benchmarks.record import Cell, Record, Setup, Shape
from benchmarks.report import ratio, report, spread

SETUP = Setup("small", "bfloat16", "two cores")
SHAPES = {"decode": Shape(256, 64), "http": Shape(256, 128)}
PRECISIONS = {"bf16": "plain", "int8": "int8", "W8A8": "int8", "Q8_0": "int8"}


def cell(number: int, row: str, decode: float, *, batch: int = 1, part: str = "decode", **more) -> Cell:
    engine, _, variant = row.partition(" ")
    variant = variant or "bf16"
    values = more.pop("values", {"decode": decode, "prefill": 10 * decode})
    about = (values, 1.5, f"{engine} 1.0", "2026-01-01 00:00")
    turn = more.pop("turn", "")
    return Cell(part, number, turn, engine, variant, PRECISIONS[variant], batch, *about, **more)


def table(*cells: Cell, batches: tuple[int, ...] = (1,), part: str = "decode") -> list[str]:
    return report(Record(Path("rounds.json"), SETUP, SHAPES, cells), PARTS[part], batches).splitlines()


def row(lines: list[str], title: str, name: str) -> str:
    start = next(index for index, line in enumerate(lines) if line.startswith(title))
    return next(line for line in lines[start:] if line.split("  ")[0] == name)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([3.0, 1.0, 2.0], "2.00 (1.00-3.00)"),
        ([30.25], "30.2"),
        ([100.0, 100.2], "100"),
        ([1234.0, 1500.0, 1300.0], "1,300 (1,234-1,500)"),
    ],
)
def test_a_median_stands_with_its_spread(values: list[float], text: str):
    assert spread(values) == text


def test_a_ratio_is_the_median_of_those_of_the_turns_that_both_ran():
    ours, theirs = (10, 30, 12), (20, 40, 60)
    cells = [cell(number, "tessera", value, turn="vllm bf16") for number, value in enumerate(ours, 1)]
    cells += [cell(number, "vllm", value, turn="vllm bf16") for number, value in enumerate(theirs, 1)]
    both = ("tessera bf16", "vllm bf16", 1, "decode")
    assert ratio(cells, *both) == 10 / 20
    others = [cell(1, "tessera", 300, turn="o bf16"), cell(4, "tessera", 300), cell(1, "vllm", 999, batch=8)]
    assert ratio([*cells, *others], *both) == 10 / 20


def test_without_a_common_turn_there_is_no_ratio():
    cells = [cell(1, "tessera", 10), cell(2, "vllm", 20), cell(1, "vllm", 20, batch=8), cell(1, "vllm", 9, turn="o")]
    assert ratio(cells, "tessera bf16", "vllm bf16", 1, "decode") is None


def test_ours_is_set_against_the_best_rival_of_its_precision_and_the_limit():
    cells = [cell(1, "tessera", 30), cell(1, "vllm", 20), cell(1, "llama.cpp", 25), cell(1, "limit", 40)]
    other = [cell(1, "tessera-old", 99), cell(1, "tessera int8", 60), cell(1, "vllm W8A8", 30)]
    batches = [cell(1, "tessera", 30, batch=8), cell(1, "vllm", 60, batch=8)]
    lines = table(*cells, *other, *batches, cell(1, "llama.cpp Q8_0", 40), batches=(1, 8))
    begin = ", of the best in its precision and of the limit: "
    assert f"tessera bf16{begin}batch 1 1.20 of llama.cpp bf16, 0.75 of limit bf16; batch 8 0.50 of vllm bf16" in lines
    assert f"tessera int8{begin}batch 1 1.50 of llama.cpp Q8_0" in lines


def test_the_best_rival_is_the_one_that_does_best_beside_ours():
    """Not the one that ran in the machine's best minute."""
    good, bad = {"turn": "vllm bf16"}, {"turn": "llama.cpp bf16"}
    cells = [cell(1, "tessera", 40, **good), cell(1, "vllm", 30, **good), cell(1, "limit", 50, **good)]
    cells += [cell(1, "tessera", 20, **bad), cell(1, "llama.cpp", 25, **bad), cell(1, "limit", 25, **bad)]
    begin = "tessera bf16, of the best in its precision and of the limit: "
    assert f"{begin}batch 1 0.80 of llama.cpp bf16, 0.80 of limit bf16" in table(*cells)


def test_the_best_of_a_latency_is_the_least():
    cells = [
        cell(1, row, 0, part="http", values={"output": 1.0, "itl_p95_ms": late})
        for row, late in (("tessera", 50.0), ("vllm", 100.0), ("llama.cpp", 200.0))
    ]
    lines = table(*cells, part="http")
    assert row(lines, "Between tokens, 95th", "llama.cpp bf16").split()[-1] == "0.25x"
    start = next(index for index, line in enumerate(lines) if line.startswith("Between tokens, 95th"))
    assert "less is better" in lines[start]
    assert "clients 1" in lines[start]
    assert lines[start + 4].endswith("clients 1 0.50 of vllm bf16")


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([0.01, 0.02], "Idle: others used at most 2%"),
        ([0.01, 0.5], "NOT IDLE, THE FIGURES ARE PRELIMINARY: others used up to 50%"),
        ([None, None], "Whether the machine was idle is not known."),
    ],
)
def test_a_busy_machine_is_said(shares: list[float | None], text: str):
    cells = [cell(number, "tessera", 10, busy=share) for number, share in enumerate(shares)]
    assert any(line.startswith(text) for line in table(*cells))
