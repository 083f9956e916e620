"""The rounds of a comparison as JSON, written anew after each result, so that an interrupted one can be continued."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

FORMAT = 1


class RecordError(Exception):
    """The file cannot be continued; says why in one line."""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What has to be the same for results to stand in one table. model: name of its folder."""

    model: str
    dtype: str
    input: int
    output: int
    machine: str


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine at one batch size in one round. prefill, decode: tokens a second. busy: share of the machine that
    others used just before. time: UTC. missing: tuning that could not be applied. limits: of a row of limits alone."""

    round: int
    engine: str
    batch: int
    prefill: float
    decode: float
    load_s: float
    version: str
    time: str
    busy: float | None = None
    first_s: float | None = None
    whole_s: float | None = None
    peak_bytes: int | None = None
    missing: tuple[str, ...] = ()
    limits: dict[str, float] = {}


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    setup: Setup
    cells: list[Cell]


class Record:
    """What has been measured so far, in memory and in a file."""

    def __init__(self, path: Path, setup: Setup, cells: Sequence[Cell] = ()) -> None:
        self.path = path
        self.setup = setup
        self.cells = list(cells)

    @classmethod
    def open(cls, path: Path, setup: Setup) -> Record:
        """Continues the file, or begins one. Raises RecordError where it holds something else."""
        if not path.exists():
            return cls(path, setup)
        try:
            document = msgspec.json.decode(path.read_bytes(), type=_Document)
        except msgspec.MsgspecError as error:
            raise RecordError(f"{path} does not hold the rounds of a comparison ({error}).") from error
        if document.format != FORMAT:
            raise RecordError(f"{path} has format {document.format}, and this program knows {FORMAT}.")
        for name in Setup.__struct_fields__:
            there, here = getattr(document.setup, name), getattr(setup, name)
            if there != here:
                raise RecordError(f"{path} was measured with {name} {there}, not {here}; give another --json.")
        return cls(path, setup, document.cells)

    def lacks(self, number: int, engine: str, batches: Sequence[int]) -> list[int]:
        """Those batch sizes that the engine has still to run in a round."""
        done = {cell.batch for cell in self.cells if (cell.round, cell.engine) == (number, engine)}
        return [batch for batch in batches if batch not in done]

    def add(self, cell: Cell) -> None:
        self.cells.append(cell)
        written = msgspec.json.format(msgspec.json.encode(_Document(FORMAT, self.setup, self.cells)), indent=1)
        beside = self.path.with_name(f"{self.path.name}.part")
        beside.write_bytes(written + b"\n")
        os.replace(beside, self.path)
