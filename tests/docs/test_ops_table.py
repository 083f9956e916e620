"""docs/decisions/ops.md says of every op what the code says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera.platform import BoundOps, HostDevice, MemoryFigures, OpSet
from tessera.reference import REFERENCE
from tessera.testing.op_inputs import OpInputs

TABLE = Path(__file__).parents[2] / "docs/decisions/ops.md"
COLUMNS = ["Op", "Group", "Spec", "Arguments", "Result", "`out`", "Mutates", "Parts"]


def read_rows() -> dict[str, dict[str, str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert header == COLUMNS
    named = {row[0].strip("`"): dict(zip(COLUMNS, row, strict=True)) for row in rows}
    assert len(named) == len(rows), "an op has two rows"
    return named


ROWS = read_rows()
NAMES = [field.name for field in dataclasses.fields(OpSet) if field.name != "extra"]


def signature(name: str) -> list[str]:
    """Of the hot call."""
    op = REFERENCE[name]
    assert op.sample_specs is not None
    if op.compose is None:
        assert op.reference is not None
        return list(inspect.signature(op.reference).parameters)[1:]
    ops = BoundOps(REFERENCE, HostDevice(torch, MemoryFigures(0, 0, host=True)))
    return list(inspect.signature(op.compose(next(iter(op.sample_specs())), ops)).parameters)


def listed(cell: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in cell.split(",") if part.strip())


def test_every_op_has_a_row_and_every_row_is_an_op() -> None:
    assert list(ROWS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_row_says_what_the_op_is(name: str) -> None:
    row, op = ROWS[name], REFERENCE[name]
    assert op.sample_specs is not None
    assert op.name == name
    assert row["Group"] == op.group
    assert row["Spec"] == type(next(iter(op.sample_specs()))).__name__
    assert listed(row["Mutates"]) == op.mutates
    assert listed(row["Parts"]) == op.parts
    arguments = [part.split()[0] for part in row["Arguments"].split(";")]
    assert arguments + (["out"] if row["`out`"] == "yes" else []) == signature(name)


SHAPE = re.compile(r"\[([^\]]*)\] ?(float32|int32|act)?")


@pytest.mark.parametrize("name", NAMES)
def test_results_have_the_dtypes_and_dimensions_of_the_row(name: str) -> None:
    op = REFERENCE[name]
    assert op.sample_specs is not None
    stated = [SHAPE.search(part) for part in ROWS[name]["Result"].split(";")]
    for spec in op.sample_specs():
        bound = BoundOps(REFERENCE, HostDevice(torch, MemoryFigures(0, 0, host=True)))
        result: Any = bound.bind(name, spec)(*OpInputs(5).of(name, spec))
        results = [part for part in (result if isinstance(result, tuple) else (result,)) if part is not None]
        for tensor, found in zip(results, stated, strict=False):
            if found is None or "..." in found[1]:
                continue
            assert tensor.dim() == len(found[1].split(","))
            if found[2] in ("float32", "int32"):
                assert str(tensor.dtype) == f"torch.{found[2]}"
