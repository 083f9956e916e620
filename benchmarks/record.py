"""The rounds of a comparison as JSON, rewritten after each result, so that an interrupted comparison can continue."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.agreement import Agreement

FORMAT = 3


class RecordError(Exception):
    """The file cannot be continued; the message says why in one line."""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be the same for results in one file. model: the name of its folder."""

    model: str
    dtype: str
    machine: str


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be the same for results in one table: tokens of a prompt and of an answer."""

    input: int
    output: int


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine at one batch size in one turn of a round of a part."""

    part: str
    round: int
    # The rival's row. Cells of the same turn were measured right after each other.
    turn: str
    engine: str
    # The engine's name for the precision.
    variant: str
    precision: str
    # Number of concurrent prompts, or clients.
    batch: int
    # By name of figure.
    values: dict[str, float]
    load_s: float
    version: str
    # UTC.
    time: str
    # Fraction of the machine that other processes used just before.
    busy: float | None = None
    peak_bytes: int | None = None
    # Per weight, including embedding and head.
    bits: float | None = None
    # Tuning that could not be applied.
    missing: tuple[str, ...] = ()
    # To the check prompts.
    answers: list[list[int]] = []
    # With the reference's answers, if there is a reference.
    agreement: Agreement | None = None
    # Its rates just before.
    machine: dict[str, float] = {}

    @property
    def row(self) -> str:
        return f"{self.engine} {self.variant}"

    @property
    def place(self) -> tuple[str, int, str, str, int]:
        """Identifies the cell within a record."""
        return self.part, self.round, self.turn, self.row, self.batch


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    setup: Setup
    shapes: dict[str, Shape]
    cells: list[Cell]


class _Format(msgspec.Struct):
    format: int


class Record:
    """The measurements so far, in memory and in a file. shapes: by part."""

    def __init__(self, path: Path, setup: Setup, shapes: Mapping[str, Shape], cells: Sequence[Cell] = ()) -> None:
        self.path = path
        self.setup = setup
        self.shapes = dict(shapes)
        self.cells = list(cells)

    @classmethod
    def open(cls, path: Path, setup: Setup, shapes: Mapping[str, Shape]) -> Record:
        """Continues the file, or starts a new one. Raises RecordError if it holds something else."""
        if not path.exists():
            return cls(path, setup, shapes)
        document = _read(path)
        _same(path, "", document.setup, setup)
        for part, shape in shapes.items():
            if part in document.shapes:
                _same(path, f" of part {part}", document.shapes[part], shape)
        return cls(path, setup, document.shapes | dict(shapes), document.cells)

    def lacks(self, part: str, number: int, turn: str, rows: Sequence[str], batches: Sequence[int]) -> list[int]:
        """The batch sizes that some of the rows have not run in a turn."""
        done = {cell.place for cell in self.cells}
        return [batch for batch in batches if any((part, number, turn, row, batch) not in done for row in rows)]

    def add(self, *cells: Cell) -> None:
        """Adds cells, replacing those with the same place."""
        places = {cell.place for cell in cells}
        self.cells = [*(cell for cell in self.cells if cell.place not in places), *cells]
        self._write()

    def _write(self) -> None:
        document = _Document(FORMAT, self.setup, self.shapes, [])
        head, tail = msgspec.json.encode(document).removesuffix(b"]}"), b"]}\n"
        beside = self.path.with_name(f"{self.path.name}.part")
        beside.write_bytes(head + b",".join(b"\n" + msgspec.json.encode(cell) for cell in self.cells) + tail)
        os.replace(beside, self.path)


def _read(path: Path) -> _Document:
    content = path.read_bytes()
    try:
        found = msgspec.json.decode(content, type=_Format).format
        if found != FORMAT:
            raise RecordError(f"{path} has format {found}, and this program knows {FORMAT}.")
        return msgspec.json.decode(content, type=_Document)
    except msgspec.MsgspecError as error:
        raise RecordError(f"{path} does not hold the rounds of a comparison ({error}).") from error


def _same(path: Path, where: str, there: msgspec.Struct, here: msgspec.Struct) -> None:
    for name in there.__struct_fields__:
        before, now = getattr(there, name), getattr(here, name)
        if before != now:
            raise RecordError(f"{path} was measured with {name}{where} {before}, not {now}; give another --json.")
