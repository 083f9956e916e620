"""docs/decisions/ops.md says of every op what its declaration says, and the declaration what the op does."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tessera.ops import REFERENCE
from tessera.platform import BoundOps, HostDevice, MemoryFigures
from tessera.testing import OpInputs
from tools.ops_table import PAGE, page, shapes
from tools.public_surface import hot_call

NAMES = REFERENCE.names()
SHAPE = re.compile(r"\[([^\]]*)\] ?(float32|int32|act)?")


def test_the_page_has_the_table_that_the_declarations_make() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run python -m tools.ops_table"


@pytest.mark.parametrize("name", NAMES)
def test_every_op_declares_what_conformance_and_the_page_need(name: str) -> None:
    op = REFERENCE[name]
    assert op.name == name
    assert op.sample_specs is not None
    assert op.inputs is not None
    assert op.served_spec is not None
    specs = [*op.sample_specs(), *(op.served_spec(dtype) for dtype in ("float32", "bfloat16"))]
    assert len({type(spec) for spec in specs}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_begins_with_the_arguments_of_the_hot_call(name: str) -> None:
    arguments, result = shapes(REFERENCE[name])
    named = [part.split()[0] for part in arguments.split(";")]
    assert named == [parameter for parameter in hot_call(REFERENCE[name]).parameters if parameter != "out"]
    assert set(REFERENCE[name].mutates) <= set(named)
    assert (result == "nothing") == bool(REFERENCE[name].mutates)


@pytest.mark.parametrize("name", NAMES)
def test_results_have_the_dtypes_and_dimensions_of_the_row(name: str) -> None:
    op = REFERENCE[name]
    assert op.sample_specs is not None
    stated = [SHAPE.search(part) for part in shapes(op)[1].split(";")]
    for spec in op.sample_specs():
        bound = BoundOps(REFERENCE, HostDevice(torch, MemoryFigures(0, 0, host=True)))
        result: Any = bound.bind(name, spec)(*OpInputs(5).arguments(name, spec))
        results = [
            part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, torch.Tensor)
        ]
        for tensor, found in zip(results, stated, strict=False):
            if found is None or "..." in found[1]:
                continue
            assert tensor.dim() == len(found[1].split(","))
            if found[2] in ("float32", "int32"):
                assert str(tensor.dtype) == f"torch.{found[2]}"
