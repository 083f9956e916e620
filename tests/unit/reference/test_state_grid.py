"""State mixers compute rows of different lengths in grids of their own: the results are those of one grid, in a
fraction of its memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.platform.wkv import WKVInput
from tessera.reference.chunks import CHUNK
from tessera.reference.parallel_scan import scanned
from tessera.reference.state_grid import StateGrid
from tessera.reference.wkv import WKVLayer
from tessera.testing.conformance.state import KINDS, Kind, Row, StateTrial
from tessera.testing.conformance.target import reference_ops
from tessera.testing.reference import host_device

LAUNCHES = (
    (Row(1, 9, 0), Row(2, 1, 0), Row(3, 1, 0)),
    (Row(3, 1, 1), Row(2, 5, 1), Row(1, 70, 9)),
    (Row(1, 1, 79), Row(3, 150, 0), Row(2, 3, 6)),
)
MANY = [Row(1, 1, 5)] * 63 + [Row(2, 300, 0)]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name + kind.variant)


class Sizes(TorchDispatchMode):
    """Elements of each tensor that an op makes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and func._schema.returns[0].alias_info is None:
            self.made.append(result.numel())
        return result


def trials(kind: Kind) -> Sequence[StateTrial]:
    """By length, and in one grid, as on a device that compiles each shape."""
    both = [StateTrial(kind.reference(), kind, "float32", reference_ops(), "int32") for _ in range(2)]
    compiling = host_device()
    compiling.eager = False
    both[1].group = dataclasses.replace(both[1].group, device=compiling)
    return both


@kinds
def test_results_and_states_are_those_of_one_grid(kind: Kind) -> None:
    both = trials(kind)
    for number, rows in enumerate(LAUNCHES):
        by_length, in_one = (trial.launched(rows, number) for trial in both)
        torch.testing.assert_close(by_length, in_one, rtol=1e-4, atol=1e-4)
    slots = sorted({row.slot for rows in LAUNCHES for row in rows})
    for ours, theirs in zip(*(trial.planes for trial in both), strict=True):
        torch.testing.assert_close(ours[slots], theirs[slots], rtol=1e-4, atol=1e-4)


@kinds
def test_a_long_prompt_takes_no_places_of_rows_that_decode(kind: Kind) -> None:
    """One grid has 66 x 300 places for 363 tokens."""
    largest = []
    for trial in trials(kind):
        with Sizes() as sizes:
            trial.launched(MANY, 0)
        largest.append(max(sizes.made))
    assert 10 * largest[0] < largest[1]


def made(call: Callable[[], Any], least: int) -> int:
    """How many tensors of at least so many elements a call makes."""
    with Sizes() as sizes:
        call()
    return sum(size >= least for size in sizes.made)


def test_a_scan_makes_no_whole_tensor_but_its_result() -> None:
    decay, added = torch.rand(2, 4 * CHUNK, 13), torch.rand(2, 4 * CHUNK, 13)
    assert made(lambda: scanned(decay, added, torch.rand(2, 13)), added.numel()) == 1


def test_time_mixing_makes_no_whole_tensor_but_its_result() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "wkv")
    trial, shape = trials(kind)[0], (2, 4 * CHUNK, kind.head_dim)
    places = torch.ones(shape[:2], dtype=torch.int64)
    lengths = torch.full((2,), shape[1])
    grid = StateGrid(places, places > 0, torch.tensor([1, 2]), lengths, lengths > 0)
    laid = WKVInput(torch.randn(shape), torch.randn(shape))
    layer = trial.layer
    assert isinstance(layer, WKVLayer)
    assert made(lambda: layer.mix(laid, [trial.planes], grid), laid.keys.numel()) == 1
