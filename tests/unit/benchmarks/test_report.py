from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.record import Cell, Record, Setup
from benchmarks.report import ratio, report, spread

SETUP = Setup("small", "bfloat16", 256, 64, "two cores")


def cell(number: int, engine: str, decode: float, *, batch: int = 1, **more) -> Cell:
    return Cell(number, engine, batch, 10 * decode, decode, 1.5, f"{engine} 1.0", "2026-01-01 00:00", **more)


def table(*cells: Cell, batches: tuple[int, ...] = (1,)) -> list[str]:
    return report(Record(Path("rounds.json"), SETUP, cells), batches).splitlines()


def row(lines: list[str], title: str, engine: str) -> str:
    start = next(index for index, line in enumerate(lines) if line.startswith(title))
    return next(line for line in lines[start:] if line.split("  ")[0] == engine)


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


def test_a_ratio_is_taken_within_each_round():
    """The machine was twice as fast in the second round; the ratio of the medians would be 0.75."""
    cells = [cell(1, "tessera", 10), cell(1, "vllm", 20), cell(2, "tessera", 20), cell(2, "vllm", 40)]
    assert ratio([*cells, cell(3, "tessera", 30)], "vllm", 1, lambda entry: entry.decode) == 0.5


def test_without_a_common_round_there_is_no_ratio():
    cells = [cell(1, "tessera", 10), cell(2, "vllm", 20), cell(1, "vllm", 20, batch=8)]
    assert ratio(cells, "vllm", 1, lambda entry: entry.decode) is None


def test_each_engine_has_its_row_of_decode_and_of_prefill_and_columns_are_aligned():
    cells = [cell(1, "limit", 40), cell(1, "vllm", 20), cell(1, "tessera", 10), cell(1, "tessera", 64, batch=8)]
    lines = table(*cells, batches=(1, 8))
    assert row(lines, "Decode", "tessera").split() == ["tessera", "10.0", "64.0"]
    assert row(lines, "Decode", "vllm").split() == ["vllm", "20.0", "0.50x", "-"]
    assert row(lines, "Prefill", "vllm").split() == ["vllm", "200", "0.50x", "-"]
    start = next(index for index, line in enumerate(lines) if line.startswith("Decode"))
    block = lines[start : start + 4]
    assert [line.split()[0] for line in block] == ["Decode,", "tessera", "vllm", "limit"]
    assert len({block[0].index("batch 8"), block[1].index("64.0"), block[2].index("-"), block[3].index("-")}) == 1


def test_batches_that_were_not_asked_for_are_left_out():
    assert "64.0" not in "\n".join(table(cell(1, "tessera", 10), cell(1, "tessera", 64, batch=8)))


def test_load_memory_and_version_stand_below():
    cells = [cell(1, "tessera", 10, peak_bytes=2**30), cell(2, "tessera", 10, peak_bytes=3 * 2**29)]
    assert row(table(*cells), "Engine", "tessera").split(maxsplit=3) == ["tessera", "1.50", "1.50", "tessera 1.0"]


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


def test_missing_tuning_and_measured_limits_are_said():
    lines = table(
        cell(1, "vllm", 20, missing=("tcmalloc",)),
        cell(2, "vllm", 20, missing=("tcmalloc",)),
        cell(1, "limit", 40, limits={"read GB/s": 40.0}),
        cell(2, "limit", 40, limits={"read GB/s": 50.0}),
    )
    assert lines.count("Not tuned as its documentation says: vllm: tcmalloc") == 1
    assert "  read GB/s: 45.0 (40.0-50.0)" in lines
