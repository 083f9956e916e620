"""Latent attention against a definition that shares no code with it, and its two ways of computing."""

from __future__ import annotations

import pytest
import torch

from tessera.ops import REFERENCE, NormSpec
from tessera.platform import BoundOps, LatentInput, LatentLayerSpec, LatentSpec
from tessera.reference.latent import ReferenceLatentAttention, ReferenceLatentLayer
from tessera.testing import TOLERANCES
from tessera.testing.latent import LatentCase, LatentTrial, latent_cases
from tessera.testing.reference import host_device

SPEC = LatentLayerSpec(0, 9, 12, 10, 0.21, "float32", LatentSpec(20, 6, "float32"), NormSpec(20, "float32", 1e-6))


CASES = [
    pytest.param(case, id=f"{name}-{size}-{dtype}")
    for size, dtype in ((16, "float32"), (24, "float32"), (1, "bfloat16"))
    for name, case in latent_cases(size, dtype)
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition(case: LatentCase) -> None:
    trial = LatentTrial(ReferenceLatentAttention(), case)
    for found, expected in zip(trial.run(), trial.expected(), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCES[case.dtype], atol=TOLERANCES[case.dtype])


@pytest.fixture
def layer() -> ReferenceLatentLayer:
    weights = {"kv_up": torch.randn(9, 12 + 10, 20, generator=torch.Generator().manual_seed(1)) / 4}
    return ReferenceLatentLayer(SPEC, weights, BoundOps(REFERENCE, host_device()))


def test_both_ways_are_the_same(layer: ReferenceLatentLayer) -> None:
    random = torch.Generator().manual_seed(2)
    queries = torch.randn(3, 7, 9, 12 + 6, generator=random)
    latents = torch.randn(3, 40, 20 + 6, generator=random)
    seen = torch.rand(3, 7, 40, generator=random) < 0.5
    seen[1, 2] = False
    expanded, absorbed = layer.expanded(queries, latents, seen), layer.absorbed(queries, latents, seen)
    torch.testing.assert_close(expanded, absorbed, rtol=1e-5, atol=1e-5)
    assert expanded.shape == (3, 7, 9, 10)
    assert not expanded[1, 2].any(), "a query that sees nothing"
    assert expanded[0].abs().max() > 0.1


def test_the_input_is_normed_and_kept_apart(layer: ReferenceLatentLayer) -> None:
    projected = torch.randn(4, 9 * 18 + 26, generator=torch.Generator().manual_seed(3))
    given = projected.clone()
    layer.weights = {**layer.weights, "latent_norm": torch.full((20,), 2.0)}
    q, latent = layer.inputs(LatentInput(*projected.split((162, 26), dim=-1)), torch.arange(4))
    first = given[:, 162:182]
    expected = 2 * first / (first.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(latent[:, :20], expected)
    assert torch.equal(latent[:, 20:], given[:, 182:])
    assert torch.equal(q.flatten(1), given[:, :162])
