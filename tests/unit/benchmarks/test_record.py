from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from benchmarks.record import Cell, Record, RecordError, Setup

SETUP = Setup("small", "bfloat16", 256, 64, "two cores")


def cell(number: int, engine: str, batch: int) -> Cell:
    return Cell(number, engine, batch, 100.0, 10.0, 1.5, "1.0", "2026-01-01 00:00")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.json"


def test_each_result_is_in_the_file_at_once_and_is_kept_when_it_is_continued(path: Path):
    record = Record.open(path, SETUP)
    assert not path.exists()
    for batch in (1, 8):
        record.add(cell(1, "tessera", batch))
        assert len(msgspec.json.decode(path.read_bytes())["cells"]) == len(record.cells)
    assert Record.open(path, SETUP).cells == record.cells
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_it_lacks_what_this_engine_has_not_run_in_this_round(path: Path):
    record = Record(path, SETUP, [cell(1, "tessera", 8), cell(2, "tessera", 1), cell(1, "vllm", 32)])
    assert record.lacks(1, "tessera", [1, 8, 32]) == [1, 32]
    assert record.lacks(3, "tessera", [1, 8]) == [1, 8]
    assert record.lacks(1, "vllm", [32]) == []


@pytest.mark.parametrize(
    ("field", "value"), [("model", "large"), ("dtype", "float32"), ("input", 128), ("output", 8), ("machine", "mine")]
)
def test_what_was_measured_otherwise_is_not_continued(path: Path, field: str, value: str | int):
    Record.open(path, SETUP).add(cell(1, "tessera", 1))
    with pytest.raises(RecordError, match=f"measured with {field} ") as raised:
        Record.open(path, msgspec.structs.replace(SETUP, **{field: value}))
    assert str(value) in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"format": 1}'])
def test_another_file_is_not_overwritten(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(RecordError, match="does not hold the rounds"):
        Record.open(path, SETUP)
    assert path.read_bytes() == content


def test_a_later_format_is_refused(path: Path):
    record = Record.open(path, SETUP)
    record.add(cell(1, "tessera", 1))
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(RecordError, match="has format 2"):
        Record.open(path, SETUP)
