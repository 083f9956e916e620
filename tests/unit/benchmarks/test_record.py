from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from benchmarks.record import Cell, Record, RecordError, Setup, Shape

SETUP = Setup("small", "bfloat16", "two cores")
SHAPES = {"decode": Shape(256, 64)}


def cell(number: int, engine: str, batch: int, part: str = "decode", turn: str = "vllm bf16", **more) -> Cell:
    variant = more.pop("variant", "bf16")
    values = {"decode": more.pop("decode", 10.0)}
    return Cell(part, number, turn, engine, variant, "plain", batch, values, 1.5, "1.0", "2026-01-01 00:00", **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.json"


def test_each_result_is_in_the_file_at_once_and_is_kept_when_it_is_continued(path: Path):
    record = Record.open(path, SETUP, SHAPES)
    assert not path.exists()
    for batch in (1, 8):
        record.add(cell(1, "tessera", batch))
        assert len(msgspec.json.decode(path.read_bytes())["cells"]) == len(record.cells)
    assert Record.open(path, SETUP, SHAPES).cells == record.cells
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_it_lacks_what_not_all_rows_of_a_turn_have_run(path: Path):
    both = [cell(1, engine, batch) for engine in ("tessera", "vllm") for batch in (1, 8)]
    others = [cell(1, "vllm", 32), cell(2, "tessera", 32), cell(1, "tessera", 32, turn="o bf16")]
    record = Record(path, SETUP, SHAPES, [*both, *others, cell(1, "tessera", 32, variant="int8")])
    rows = ("tessera bf16", "vllm bf16")
    assert record.lacks("decode", 1, "vllm bf16", rows, [1, 8, 32]) == [32]
    assert record.lacks("decode", 1, "vllm bf16", rows[1:], [1, 8, 32]) == []
    assert record.lacks("decode", 2, "vllm bf16", rows, [1, 8]) == [1, 8]
    assert record.lacks("decode", 1, "o bf16", ["tessera bf16"], [1, 32]) == [1]
    assert record.lacks("prefill", 1, "vllm bf16", rows, [1]) == [1]


def test_what_is_measured_again_stands_in_place_of_what_was(path: Path):
    record = Record(path, SETUP, SHAPES, [cell(1, "vllm", 1), cell(1, "vllm", 8)])
    record.add(cell(1, "tessera", 1), cell(1, "vllm", 1, decode=20.0))
    assert [(found.row, found.batch, found.values["decode"]) for found in Record.open(path, SETUP, SHAPES).cells] == [
        ("vllm bf16", 8, 10.0),
        ("tessera bf16", 1, 10.0),
        ("vllm bf16", 1, 20.0),
    ]


@pytest.mark.parametrize(("field", "value"), [("model", "large"), ("dtype", "float32"), ("machine", "mine")])
def test_what_was_measured_otherwise_is_not_continued(path: Path, field: str, value: str):
    Record.open(path, SETUP, SHAPES).add(cell(1, "tessera", 1))
    with pytest.raises(RecordError, match=f"measured with {field} ") as raised:
        Record.open(path, msgspec.structs.replace(SETUP, **{field: value}), SHAPES)
    assert value in str(raised.value)


@pytest.mark.parametrize("shape", [Shape(128, 64), Shape(256, 8)])
def test_a_part_with_other_lengths_is_not_continued(path: Path, shape: Shape):
    Record.open(path, SETUP, SHAPES).add(cell(1, "tessera", 1))
    with pytest.raises(RecordError, match=r"measured with (input|output) of part decode (256|64), not (128|8);"):
        Record.open(path, SETUP, {"decode": shape})
