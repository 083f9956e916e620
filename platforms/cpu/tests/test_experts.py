"""Mixtures of experts where their kernel changes its way: more rows than fit between the products, and than an expert
takes at once; biases; experts that nobody chose, or that are elsewhere; a router that is wider than the experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import BoundOps, ClampedGateSpec, ExpertsSpec, GateSpec, LinearSpec, MoESpec, RouteSpec
from tessera.testing import REFERENCE, TOLERANCES, OpInputs, assert_same, encoded_scheme
from tessera_cpu import native
from tessera_cpu.platform import CpuPlatform
from tessera_cpu.quantized import served
from tessera_cpu.tape import Tape
from tests.platforms.cpu_kernels import available, kernels, needs_kernels

pytestmark = needs_kernels
every_set = pytest.mark.parametrize("name", available())
every_dtype = pytest.mark.parametrize("dtype", native.ENTRIES)


def own() -> BoundOps:
    platform = CpuPlatform()
    return BoundOps(platform.ops(REFERENCE), platform.open(0))


def experts_of(dtype: str, n: int, k: int, experts: int = 3, *, bias: bool = False) -> ExpertsSpec:
    wide = LinearSpec(2 * n, k, dtype, bias=bias, experts=experts)
    return ExpertsSpec(wide, GateSpec(n, dtype), LinearSpec(k, n, dtype, bias=bias, experts=experts), 2, first=1)


def inputs(spec: ExpertsSpec, ids: Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """For the platform, and for the reference."""
    mine, theirs = (list(OpInputs(len(ids), ops=ops).arguments("experts", spec)) for ops in (own(), None))
    mine[2] = theirs[2] = ids
    return tuple(mine), tuple(theirs)


@every_set
@every_dtype
def test_a_long_step_is_run_in_waves(name: str, dtype: str) -> None:
    """About 25 KB a row, of which 64 MiB are computed at a time; most are of one expert."""
    spec, random = experts_of(dtype, 2560, 16), torch.Generator().manual_seed(3)
    ids = torch.rand(2100, 4, generator=random).mul(torch.tensor([1.0, 3.0, 1.0, 1.0])).argsort(-1)[:, 2:].int()
    with kernels(name):
        mine, theirs = inputs(spec, ids)
        found = own().bind("experts", spec)(*mine)
    assert_same(found, BoundOps(REFERENCE, CpuPlatform().open(0)).bind("experts", spec)(*theirs), TOLERANCES[dtype])


@every_set
@every_dtype
def test_biases_and_tokens_without_experts_here(name: str, dtype: str) -> None:
    spec = experts_of(dtype, 44, 40, bias=True)
    ids = torch.tensor([[0, 4], [1, 3], [0, 3], [3, 1], [4, 5]], dtype=torch.int32)
    with kernels(name):
        mine, theirs = inputs(spec, ids)
        found = own().bind("experts", spec)(*mine)
    assert_same(found, BoundOps(REFERENCE, CpuPlatform().open(0)).bind("experts", spec)(*theirs), TOLERANCES[dtype])
    assert not found[[0, 4]].any()


def test_a_recorded_mixture_reads_its_choices_when_it_is_replayed() -> None:
    """With a router in float32, which takes the rows widened."""
    part = experts_of("bfloat16", 44, 40)
    experts = ExpertsSpec(part.gate_up, part.gate, part.down, 2)
    spec, ops = MoESpec(LinearSpec(3, 40, "float32"), RouteSpec(3, 2), experts), own()
    call = ops.bind("moe", spec)
    x, *weights = OpInputs(5, ops=ops).arguments("moe", spec)
    with torch.inference_mode():
        with Tape(native.library(), 5) as tape:
            found = call(x, *weights)
        assert tape.whole
        for _ in range(2):
            x.copy_(torch.randn(5, 40))
            tape.replay(5)
            assert torch.equal(found, call(x, *weights))


@every_set
@pytest.mark.parametrize(("n", "k"), [(96, 160), (32, 352)])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_experts_in_mxfp4(name: str, n: int, k: int, tokens: int) -> None:
    """As gpt-oss has them, in odd numbers of blocks. Activations are rounded to int8 in groups, twice."""
    scheme = served(encoded_scheme("mxfp4"))
    assert not isinstance(scheme, str)
    encoding = scheme.weight.encoding
    assert encoding is not None
    wide = LinearSpec(2 * n, k, "bfloat16", scheme, bias=True, experts=5)
    back = LinearSpec(k, n, "bfloat16", scheme, bias=True, experts=5)
    spec = ExpertsSpec(wide, ClampedGateSpec(n, "bfloat16", 7.0, 1.702), back, 2)
    random = torch.Generator().manual_seed(n + tokens)
    raw = [mxfp4_of(one, random) for one in (wide, back)]
    x = torch.randn(tokens, k, generator=random).bfloat16()
    ids = torch.rand(tokens, 5, generator=random).argsort(-1)[:, :2].int()
    weights = torch.rand(tokens, 2, generator=random)
    floats = [replace(one, dtype="float32", scheme=None) for one in (wide, back)]
    meant = [{"weight": encoding.dequantize({"weight": one["weight"]}), "bias": one["bias"].float()} for one in raw]
    defined = ExpertsSpec(floats[0], ClampedGateSpec(n, "float32", 7.0, 1.702), floats[1], 2)
    expected = BoundOps(REFERENCE, CpuPlatform().open(0)).bind("experts", defined)(x.float(), weights, ids, *meant)
    with kernels(name):
        ops = own()
        packed = [ops.prepare("linear", one, dict(parts)) for one, parts in zip((wide, back), raw, strict=True)]
        found = ops.bind("experts", spec)(x, weights, ids, *packed)
    assert [one["weight"].nbytes for one in packed] == [
        5 * -(-one.n // 32) * 32 * one.k * 17 // 32 for one in (wide, back)
    ]
    assert float((found.float() - expected).norm() / expected.norm()) < 0.02


def mxfp4_of(spec: LinearSpec, random: torch.Generator) -> dict[str, Tensor]:
    """Results of about 1 or more, so that some gates are clamped."""
    blocks = torch.randint(0, 256, (spec.experts, spec.n, spec.k // 32, 17), generator=random, dtype=torch.uint8)
    blocks[..., 0] = torch.randint(122, 126, blocks.shape[:-1], generator=random, dtype=torch.uint8)
    return {"weight": blocks, "bias": torch.randn(spec.experts, spec.n, generator=random).bfloat16()}
