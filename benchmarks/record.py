"""The rounds of a comparison as JSON, written anew after each result, so that an interrupted one can be continued."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

FORMAT = 2


class RecordError(Exception):
    """The file cannot be continued; says why in one line."""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be the same for results to stand in one file. model: name of its folder."""

    model: str
    dtype: str
    machine: str


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be the same for results to stand in one table: tokens of a prompt and of an answer."""

    input: int
    output: int


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Greedy answers to the prompts that are checked. near: for each token of each answer the likeliest tokens there,
    and how far each one's log probability is below the first's."""

    version: str
    answers: list[list[int]]
    near: list[list[dict[int, float]]]


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine at one batch size in one round of a part. variant: its own name of the precision. batch: prompts at
    once, or clients. values: by name of figure. busy: share of the machine that others used just before. time: UTC.
    bits: of a weight, embedding and head included. missing: tuning that could not be applied. answers: to the prompts
    that are checked. machine: what it could do just before. limits: of a row of limits alone."""

    part: str
    round: int
    engine: str
    variant: str
    precision: str
    batch: int
    values: dict[str, float]
    load_s: float
    version: str
    time: str
    busy: float | None = None
    peak_bytes: int | None = None
    bits: float | None = None
    missing: tuple[str, ...] = ()
    answers: list[list[int]] = []
    machine: dict[str, float] = {}
    limits: dict[str, float] = {}

    @property
    def row(self) -> str:
        return f"{self.engine} {self.variant}"


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    setup: Setup
    shapes: dict[str, Shape]
    references: dict[str, Reference]
    cells: list[Cell]


class _Format(msgspec.Struct):
    format: int


class Record:
    """What has been measured so far, in memory and in a file. shapes: by part. references: by the length of the prompts
    that are checked."""

    def __init__(
        self,
        path: Path,
        setup: Setup,
        shapes: Mapping[str, Shape],
        cells: Sequence[Cell] = (),
        references: Mapping[str, Reference] | None = None,
    ) -> None:
        self.path = path
        self.setup = setup
        self.shapes = dict(shapes)
        self.cells = list(cells)
        self.references = dict(references or {})

    @classmethod
    def open(cls, path: Path, setup: Setup, shapes: Mapping[str, Shape]) -> Record:
        """Continues the file, or begins one. Raises RecordError where it holds something else."""
        if not path.exists():
            return cls(path, setup, shapes)
        document = _read(path)
        _same(path, "", document.setup, setup)
        for part, shape in shapes.items():
            if part in document.shapes:
                _same(path, f" of part {part}", document.shapes[part], shape)
        return cls(path, setup, document.shapes | dict(shapes), document.cells, document.references)

    def lacks(self, part: str, number: int, row: str, batches: Sequence[int]) -> list[int]:
        """Those batch sizes that the row has still to run in a round of a part."""
        done = {cell.batch for cell in self.cells if (cell.part, cell.round, cell.row) == (part, number, row)}
        return [batch for batch in batches if batch not in done]

    def add(self, *cells: Cell) -> None:
        self.cells += cells
        self._write()

    def refer(self, length: int, reference: Reference) -> None:
        self.references[str(length)] = reference
        self._write()

    def _write(self) -> None:
        document = _Document(FORMAT, self.setup, self.shapes, self.references, self.cells)
        beside = self.path.with_name(f"{self.path.name}.part")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
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
