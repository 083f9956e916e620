"""Products by aiter of activations that the library's own kernel quantizes on the way, over a stand-in."""

from __future__ import annotations

import pytest
import torch

from tessera.platform import ActSpec, BoundOps, LinearSpec, QuantSpec, Scheme, TensorSpec
from tessera.platform import replace as with_kernels
from tessera.testing import REFERENCE, TOLERANCES, assert_same
from tessera.testing.reference import host_device
from tests.platforms.interpreted import Interpreted

# Kernels are interpreted if this is imported before them.
# isort: split
from tessera_rocm.aiter_products import kernels
from tessera_triton import TARGETS, Launcher
from tessera_triton.providers import Provider

N, K = 24, 512
STAND_IN = Provider("aiter", "tests.platforms.providers.aiter_products", {})


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_activations_are_quantized_by_token(tokens: int) -> None:
    parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    spec = LinearSpec(
        N, K, "bfloat16", Scheme(QuantSpec("int8", "channel"), ActSpec("int8", "token"), parts=parts), bias=True
    )
    random = torch.Generator().manual_seed(0)
    weight = {
        "weight": torch.randint(-127, 128, (N, K), generator=random, dtype=torch.int8),
        "scale": torch.rand(N, generator=random) / 64,
        "bias": torch.randn(N, generator=random).bfloat16(),
    }
    x = torch.randn(tokens, K, generator=random).bfloat16()
    library = Interpreted().ops(REFERENCE)
    ops = BoundOps(with_kernels(library, **kernels(TARGETS["gfx942"], Launcher(), STAND_IN)), host_device())
    found = ops.bind("linear", spec)(x, ops.prepare("linear", spec, weight))
    assert_same(found, REFERENCE["linear"].reference(spec, x, weight), TOLERANCES["bfloat16"])
