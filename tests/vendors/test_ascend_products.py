"""Products of `ascend` on the device, of sizes that are multiples of the tiles, which the kit's are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera.platform import BoundOps, LinearSpec, Packed
from tessera.quantization.schemes import candidates
from tessera.testing import REFERENCE
from tests.vendors.chosen import PLATFORM

pytestmark = pytest.mark.compiler

N, K = 96, 160


def spec_of(dtype: str, quantization: str | None, *, bias: bool) -> LinearSpec:
    return LinearSpec(N, K, dtype, candidates(quantization, K)[0] if quantization else None, bias=bias)


def weight_of(spec: LinearSpec, seed: int) -> Packed:
    random = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, spec.dtype)
    parts = {"weight": torch.randn(N, K, generator=random).to(dtype)}
    if spec.scheme is not None:
        parts = {
            "weight": torch.randint(-128, 128, (N, K), generator=random, dtype=torch.int8),
            "scale": torch.rand(N, generator=random) / 100,
        }
    return parts | ({"bias": torch.randn(N, generator=random).to(dtype)} if spec.bias else {})


def bound(chip: Any) -> BoundOps:
    from tessera.plugins import load_path

    platform = load_path(PLATFORM.path)()
    return BoundOps(platform.ops(REFERENCE), platform.open(0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_what_its_reference_computes(chip: Any, dtype: str, quantization: str | None, bias: bool) -> None:
    ops, spec = bound(chip), spec_of(dtype, quantization, bias=bias)
    raw = weight_of(spec, 0)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    assert REFERENCE["linear"].reference is not None
    expected = REFERENCE["linear"].reference(spec, x, raw)
    packed = ops.prepare("linear", spec, {name: part.to("npu") for name, part in raw.items()})
    assert ops.native("linear", spec)
    out = torch.empty(5, N, dtype=x.dtype, device="npu")
    call = ops.bind("linear", spec)
    assert call(x.to("npu"), packed, out=out) is out
    torch.testing.assert_close(out.cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_weight_that_is_prepared_again_keeps_its_address(chip: Any, quantization: str | None) -> None:
    ops, spec = bound(chip), spec_of("bfloat16", quantization, bias=True)
    first, second = ({name: part.to("npu") for name, part in weight_of(spec, seed).items()} for seed in (0, 1))
    packed = ops.prepare("linear", spec, first)
    places = {name: part.data_ptr() for name, part in packed.items()}
    again = ops.prepare("linear", spec, second, packed)
    assert {name: part.data_ptr() for name, part in again.items()} == places
    expected = ops.prepare("linear", spec, second)
    assert all(torch.equal(again[name].cpu(), part.cpu()) for name, part in expected.items())
