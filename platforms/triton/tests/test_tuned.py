"""Measured sizes of tiles are used where they are right, by the device and the version that they were measured with."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import triton
from platforms.triton.tests.test_products import SCHEMES, inputs

from tessera.platform import BoundOps, LinearSpec
from tessera.testing import REFERENCE, TOLERANCES, assert_same
from tessera.testing.reference import host_device

# Kernels are interpreted if this is imported before them.
# isort: split
from tessera_triton import tuned
from tessera_triton.facts import INTERPRETED, Launcher
from tessera_triton.products import Linear
from tessera_triton.tuned import Tiling, place_of

VERSION = ".".join(triton.__version__.split(".")[:2])
SPEC = LinearSpec(72, 256, "bfloat16", SCHEMES["w4a8"], bias=True)
FEW, MANY = Tiling(16, 16, 4, 1, 1), Tiling(32, 32, 4, 1, 2)


class Watched(Launcher):
    """tiles: of the products that were launched. wrong: tiles of so many outputs are compiled wrongly."""

    def __init__(self, wrong: int = 0) -> None:
        super().__init__()
        self.wrong, self.tiles = wrong, []

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        super().__call__(kernel, grid, *arguments, **options)
        if kernel.fn.__name__ == "_product":
            self.tiles.append((options["BLOCK_M"], options["BLOCK_N"], grid[1]))
            if options["BLOCK_N"] == self.wrong:
                arguments[15].mul_(1.1)  # its results


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    made = {INTERPRETED.name: {VERSION: {place_of(SPEC): {"8": list(FEW), "32": list(MANY)}}}}
    monkeypatch.setattr(tuned, "_table", lambda: made)
    return made


def product(launch: Launcher, spec: LinearSpec = SPEC) -> Any:
    call = Linear(INTERPRETED, launch).bind(spec, BoundOps(REFERENCE, host_device(), {}), host_device())
    launch.tiles.clear()
    return call


@pytest.mark.parametrize(("tokens", "tile"), [(7, (16, 16, 1)), (8, (16, 16, 1)), (20, (32, 32, 2))])
def test_a_measured_size_is_used(table: dict[str, Any], tokens: int, tile: tuple[int, int, int]) -> None:
    launch = Watched()
    x, raw = inputs(SPEC, tokens)
    found = product(launch)(x, Linear(INTERPRETED, launch).prepare(SPEC, raw))
    assert launch.tiles == [tile]
    assert_same(found, REFERENCE["linear"].reference(SPEC, x, raw), TOLERANCES["bfloat16"])


def test_all_others_are_computed(table: dict[str, Any]) -> None:
    launch = Watched()
    x, raw = inputs(SPEC, 9)
    product(launch)(x, Linear(INTERPRETED, launch).prepare(SPEC, raw))
    assert launch.tiles[0] not in [(FEW.m, FEW.n, FEW.parts), (MANY.m, MANY.n, MANY.parts)]
    assert dict(product(Watched()).tilings) == {8: FEW, 32: MANY}
    table[INTERPRETED.name] = {"0.0": table[INTERPRETED.name][VERSION]}
    assert dict(product(Watched()).tilings) == {}


def test_a_size_that_is_compiled_wrongly_is_dropped(table: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tessera.triton"):
        call = product(Watched(wrong=FEW.n))
    assert dict(call.tilings) == {32: MANY}
    (line,) = caplog.messages
    assert line == (
        "measured tiles are not used, because they give wrong numbers here: "
        "Tiling(m=16, n=16, warps=4, stages=1, parts=1) for 8 tokens of int4 group 32 by int8 token, 72 x 256, bfloat16"
    )


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_has_a_place_of_its_own_and_is_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LinearSpec(72, 192, "bfloat16", SCHEMES[name])
    assert len({place_of(LinearSpec(72, 192, "bfloat16", one)) for one in SCHEMES.values()}) == len(SCHEMES)
    monkeypatch.setattr(tuned, "_table", lambda: {INTERPRETED.name: {VERSION: {place_of(spec): {"4": list(FEW)}}}})
    assert dict(product(Watched(), spec).tilings) == {4: FEW}
    assert dict(product(Watched(wrong=FEW.n), spec).tilings) == {}


def test_what_is_committed_can_be_read() -> None:
    for device, versions in tuned._table().items():
        for version, places in versions.items():
            for place, sizes in places.items():
                assert all(len(one) == len(Tiling._fields) for one in sizes.values()), (device, version, place)
