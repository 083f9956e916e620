"""Products over more elements, and more rows, than are taken at a time: blocks of uneven length and the sums kept
between them, on every instruction set, against the reference's definition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tessera.platform import BoundOps, GatedMLPSpec, GateSpec, LinearSpec
from tessera.testing import REFERENCE, assert_same, quantised
from tessera_cpu import mlp
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels, needs_kernels, served_scheme

pytestmark = needs_kernels
LONG = {None: 4999, "int8": 9116, "int4": 18464}  # five blocks, none of them a multiple of a vector
NEAR = 3e-2  # of a bfloat16 result of about 1, where an activation may be rounded either way
NEAR_GATED = 5e-2  # where two may be
ROWS = (1, 2, 3, 6, 7, 13, 390)


@pytest.fixture(params=available())
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels(request.param):
        yield


def linear(n: int, k: int, name: str | None) -> LinearSpec:
    return LinearSpec(n, k, "bfloat16", served_scheme(name, k) if name else None)


def raw(spec: LinearSpec) -> dict[str, torch.Tensor]:
    weight = torch.randn(spec.n, spec.k, generator=torch.Generator().manual_seed(spec.n)) * spec.k**-0.5
    return quantised(weight.bfloat16(), spec.scheme) if spec.scheme else {"weight": weight.bfloat16()}


def rows(tokens: int, k: int) -> torch.Tensor:
    return torch.randn(tokens, k, generator=torch.Generator().manual_seed(tokens)).bfloat16()


@pytest.mark.parametrize("name", LONG)
def test_linear(instructions: None, name: str | None) -> None:
    spec, platform = linear(70, LONG[name], name), CpuPlatform()
    own, reference = (BoundOps(ops, platform.open(0)) for ops in (platform.ops(REFERENCE), REFERENCE))
    packed = own.prepare("linear", spec, raw(spec))
    call, expected = own.bind("linear", spec), reference.bind("linear", spec)
    assert own.choices["linear", spec].how == "native"
    for tokens in ROWS:
        x = rows(tokens, spec.k)
        assert_same(call(x, packed), expected(x, raw(spec)), NEAR)


@pytest.mark.parametrize("name", LONG)
def test_gate_inside_the_product(instructions: None, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "BETWEEN", 0)
    wide, back, platform = linear(128, LONG[name], name), linear(40, 64, name), CpuPlatform()
    spec = GatedMLPSpec(wide, GateSpec(64, "bfloat16", "silu"), back)
    own, reference = (BoundOps(ops, platform.open(0)) for ops in (platform.ops(REFERENCE), REFERENCE))
    weights = [own.prepare("linear", one, raw(one)) for one in (wide, back)]
    call, expected = own.bind("gated_mlp", spec), reference.bind("gated_mlp", spec)
    for tokens in ROWS:
        x = rows(tokens, wide.k)
        assert_same(call(x, *weights), expected(x, raw(wide), raw(back)), NEAR_GATED)
