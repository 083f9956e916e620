"""Launches without Triton's binder: what arrives at the kernel is what Triton would pass, and no launch gets a kernel
that was compiled for other arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl
from benchmarks.gpu.launches import LAYERS, Launch, launches_of_a_layer, without_driver

from tessera_triton import TARGETS
from tessera_triton.direct import DirectLauncher
from tools.triton_launches import Recorder


@triton.jit(do_not_specialize=["rows"])
def some_kernel(x, y, n, scale, rows, BLOCK: tl.constexpr, ADDS: tl.constexpr):
    pass


def test_a_launch_passes_what_triton_passes() -> None:
    layer = launches_of_a_layer()
    made: list[Any] = []
    with without_driver(made):
        direct = DirectLauncher()
        for _ in range(2):  # the first turn is Triton's
            for launch in layer:
                launch.by(direct)
    first, second = made[: len(layer)], made[len(layer) :]
    assert [grid for grid, _ in first] == [grid for grid, _ in second]
    for (_, theirs), (_, ours) in zip(first, second, strict=True):
        assert len(theirs) == len(ours)
        assert all(one is other or one == other for one, other in zip(theirs, ours, strict=True))


def test_each_kind_of_launch_is_compiled_once_and_all_are_made() -> None:
    made: list[Any] = []
    with without_driver(made):
        direct = DirectLauncher()
        for launch in launches_of_a_layer() * LAYERS:
            launch.by(direct)
        assert len(made) == LAYERS * len(launches_of_a_layer())
        assert (
            len({direct.key(launch.kernel, launch.arguments, launch.options) for launch in launches_of_a_layer()}) == 4
        )


X = torch.empty(64)
KINDS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "usual": ((X, X, 48, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "more rows": ((X, X, 48, 0.5, 16), {"BLOCK": 64, "ADDS": True}),
    "one row": ((X, X, 48, 0.25, 1), {"BLOCK": 64, "ADDS": True}),
    "many rows": ((X, X, 48, 0.5, 1 << 31), {"BLOCK": 64, "ADDS": True}),
    "other alignment": ((X[1:], X, 48, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "other dtype": ((X.half(), X, 48, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "no tensor": ((X, None, 48, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "one": ((X, X, 1, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "odd": ((X, X, 49, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "wide": ((X, X, 48 << 32, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "true": ((X, X, True, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "false": ((X, X, False, 0.5, 7), {"BLOCK": 64, "ADDS": True}),
    "a whole number": ((X, X, 48, 2, 7), {"BLOCK": 64, "ADDS": True}),
    "other constant": ((X, X, 48, 0.5, 7), {"BLOCK": 64, "ADDS": False}),
    "more warps": ((X, X, 48, 0.5, 7), {"BLOCK": 64, "ADDS": True, "num_warps": 8}),
}


def test_launches_with_equal_keys_are_compiled_alike() -> None:
    direct, kinds = DirectLauncher(), dict[Any, str]()
    for arguments, options in KINDS.values():
        recorder = Recorder(TARGETS["sm_90"])
        recorder(some_kernel, (1,), *arguments, **options)
        (compiled,) = recorder.launches
        assert kinds.setdefault(direct.key(some_kernel, arguments, options), compiled) == compiled
    assert len(kinds) == len(KINDS) - 2  # but for more rows, and one


def test_grids_of_each_size_are_launched() -> None:
    made: list[Any] = []
    arguments, options = KINDS["usual"]
    with without_driver(made):
        direct = DirectLauncher()
        for grid in ((5,), (5,), (2, 3), (2, 3, 4)):
            Launch(some_kernel, grid, arguments, options).by(direct)
    assert [grid for grid, _ in made] == [(5, 1, 1), (5, 1, 1), (2, 3, 1), (2, 3, 4)]
