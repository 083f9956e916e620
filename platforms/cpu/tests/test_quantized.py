"""Quantized weights on the native kernels of every instruction set, against the reference's definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tessera.platform import (
    ActSpec,
    AddNormSpec,
    BoundOps,
    ExpertsSpec,
    GatedMLPSpec,
    GateSpec,
    LinearSpec,
    NormLinearSpec,
    NormSpec,
    PackedEmbeddingSpec,
    Quantized,
    QuantSpec,
    Scheme,
    TensorSpec,
)
from tessera.testing import REFERENCE, assert_same, candidates, quantised
from tessera_cpu import activations, mlp
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels, needs_kernels, served_scheme

pytestmark = needs_kernels
SCHEMES = ("int8", "int4")
NEAR = 3e-2  # of a bfloat16 result of about 1, where an activation may be rounded either way


@pytest.fixture(params=available())
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    with kernels(request.param):
        yield


def both() -> tuple[BoundOps, BoundOps]:
    platform = CpuPlatform()
    return BoundOps(platform.ops(REFERENCE), platform.open(0)), BoundOps(REFERENCE, platform.open(0))


def raw(spec: LinearSpec, seed: int = 0) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    shape = (spec.experts, spec.n, spec.k) if spec.experts else (spec.n, spec.k)
    weight = (torch.randn(*shape, generator=random) * spec.k**-0.5).bfloat16()
    bias = {"bias": torch.randn(spec.n, generator=random).bfloat16()} if spec.bias else {}
    return (quantised(weight, spec.scheme) if spec.scheme else {"weight": weight}) | bias


def rows(tokens: int, k: int) -> torch.Tensor:
    """With a stride of their own."""
    return torch.randn(tokens, k + 5, generator=torch.Generator().manual_seed(tokens)).bfloat16()[:, :k]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (33, 72), (96, 192), (70, 1000)])
def test_linear(instructions: None, name: str, n: int, k: int) -> None:
    spec = LinearSpec(n, k, "bfloat16", served_scheme(name, k), bias=True)
    own, reference = both()
    packed = own.prepare("linear", spec, raw(spec))
    call, expected = own.bind("linear", spec), reference.bind("linear", spec)
    assert own.choices["linear", spec].how == "native"
    assert sum(tensor.nbytes for tensor in packed.values()) == own.ops["linear"].kernel.packed_bytes(spec)
    for tokens in (0, 1, 5, 13, 200, 2):
        x, out = rows(tokens, k), torch.full((tokens, n + 3), torch.nan, dtype=torch.bfloat16)
        assert_same(call(x, packed), expected(x, raw(spec)), NEAR)
        call(x, packed, out=out[:, :n])
        assert_same(out[:, :n].contiguous(), expected(x, raw(spec)), NEAR)
        assert out[:, n:].isnan().all()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("n", "k", "group", "scales"),
    [(1, 8, 8, "float16"), (33, 160, 32, "bfloat16"), (70, 1536, 128, "float16"), (40, 144, 48, "bfloat16")],
)
def test_groups_with_and_without_zero_points(
    instructions: None, dtype: str, symmetric: bool, n: int, k: int, group: int, scales: str
) -> None:
    """As compressed-tensors, GPTQ and AWQ store them."""
    pairs, random = dtype == "int4", torch.Generator().manual_seed(n)
    low, high = (-8, 8) if pairs else (-128, 128)
    parts = {
        "weight": TensorSpec("uint8", (1, 2)) if pairs else TensorSpec("int8", (1, 1)),
        "scale": TensorSpec(scales, (1, group)),
        **({} if symmetric else {"zero_point": TensorSpec("int8", (1, group))}),
    }
    offered = Scheme(QuantSpec(dtype, "group", group, symmetric, scales), parts=parts)
    found = CpuPlatform().scheme(offered)
    assert isinstance(found, Scheme)
    spec, (own, reference) = LinearSpec(n, k, "bfloat16", found), both()
    whole = torch.randint(low, high, (n, k), generator=random)
    zero = torch.randint(low, high, (n, k // group), generator=random, dtype=torch.int8)
    zero[0, 0] = low
    weight = {
        "weight": ((whole[:, ::2] + 8) | (whole[:, 1::2] + 8) << 4).to(torch.uint8) if pairs else whole.to(torch.int8),
        "scale": ((torch.rand(n, k // group, generator=random) + 0.5) / high * k**-0.5).to(getattr(torch, scales)),
        **({} if symmetric else {"zero_point": zero}),
    }
    packed, call = own.prepare("linear", spec, weight), own.bind("linear", spec)
    assert own.choices["linear", spec].how == "native"
    assert sum(tensor.nbytes for tensor in packed.values()) == own.ops["linear"].kernel.packed_bytes(spec)
    for tokens in (1, 6, 40):
        x = rows(tokens, k)
        assert_same(call(x, packed), reference.bind("linear", spec)(x, weight), NEAR)
    embedding, tokens_ = PackedEmbeddingSpec(spec), torch.arange(n, dtype=torch.int32)
    found_rows = own.bind("packed_embedding", embedding)(tokens_, packed)
    assert_same(found_rows, reference.bind("packed_embedding", embedding)(tokens_, weight), 1e-2)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("k", [8, 72])
def test_a_row_with_a_number_that_is_none_is_none_and_no_other(instructions: None, name: str, k: int) -> None:
    spec, (own, _) = LinearSpec(40, k, "bfloat16", served_scheme(name, k)), both()
    x = rows(5, k)
    x[1, 0], x[2, k - 1], x[3], x[4, k // 2] = torch.nan, torch.nan, 0.0, torch.inf
    found = own.bind("linear", spec)(x, own.prepare("linear", spec, raw(spec)))
    assert [bool(row.isnan().all()) for row in found] == [False, True, True, False, True]
    assert not found[[0, 3]].isnan().any()
    assert not found[3].any()


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("inner", [64, 40])
def test_gated_mlp(instructions: None, name: str, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one kernel where the inner size is of whole panels; in stretches of tokens."""
    monkeypatch.setattr(mlp, "BETWEEN", 0)
    wide = LinearSpec(2 * inner, 72, "bfloat16", served_scheme(name, 72))
    back = LinearSpec(72, inner, "bfloat16", served_scheme(name, inner))
    own, reference = both()
    for activation in ("silu", "gelu_tanh"):
        spec = GatedMLPSpec(wide, GateSpec(inner, "bfloat16", activation), back)
        weights = [own.prepare("linear", one, raw(one, seed)) for seed, one in enumerate((wide, back))]
        for tokens in (1, 2 * mlp.ROWS + 3):
            x = rows(tokens, 72)
            expected = reference.bind("gated_mlp", spec)(x, raw(wide, 0), raw(back, 1))
            assert_same(own.bind("gated_mlp", spec)(x, *weights), expected, NEAR)
        assert ("linear", wide) not in own.choices or inner % 32


def emitting(name: str, n: int) -> ActSpec:
    return dataclasses.replace(activations.INT8, sums=min(served_scheme(name, n).weight.group or n, 16))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("n", "offset"), [(32, 0.0), (96, 1.0), (992, 0.0)])
@pytest.mark.parametrize("alone", [True, False])
def test_a_norm_writes_rows_of_int8(instructions: None, name: str, n: int, offset: float, alone: bool) -> None:
    """With or without a residual; a row with a number that is none has a scale that is none, and no other has."""
    emit, (own, reference) = emitting(name, n), both()
    spec = AddNormSpec(NormSpec(n, "bfloat16", 1e-6, offset=offset), multiplier=0.5)
    weight = rows(1, n)[0].contiguous()
    for tokens in (0, 1, 7):
        x, residual = rows(tokens, n), None if alone else rows(tokens, n) * 2
        if tokens == 7:
            x[2, n - 1], x[4, 0] = torch.nan, torch.inf
        found, total = own.bind("add_norm", spec.emitting(emit))(x, residual, weight)
        expected, same = reference.bind("add_norm", spec.emitting(emit))(x, residual, weight)
        assert isinstance(found, Quantized)
        lost = [bool(row.isnan().any()) for row in found.scale]
        assert lost == [tokens == 7 and row in (2, 4) for row in range(tokens)]
        kept = ~found.scale.isnan().any(-1)
        assert_same((total[kept], found.scale[kept]), (same[kept], expected.scale[kept]), 5e-3)
        away = (found.data.int() - expected.data.int())[kept].abs()
        assert away.sum() <= 0.05 * away.numel()  # which may round the other way
        assert not (away > 1).any()
        assert torch.equal(found.data.int().view(tokens, n // emit.sums, emit.sums).sum(-1).int(), found.sums)


@pytest.mark.parametrize("name", SCHEMES)
def test_no_input_is_quantised_apart_from_what_makes_it(
    instructions: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm does it for the product, or the MLP, that follows; the gate for the second product of the MLP."""
    own, reference = both()
    apart, plainly = list[int](), activations._quantise

    def counted(library: Any, x: Tensor, task: Any) -> Tensor:
        apart.append(len(x))
        return plainly(library, x, task)

    monkeypatch.setattr(activations, "_quantise", counted)
    norm = AddNormSpec(NormSpec(96, "bfloat16", 1e-6))
    qkv, wide = (LinearSpec(n, 96, "bfloat16", served_scheme(name, 96), bias=n == 40) for n in (40, 128))
    back = LinearSpec(96, 64, "bfloat16", served_scheme(name, 64))
    x, residual, weight = rows(9, 96), rows(9, 96) * 2, rows(1, 96)[0].contiguous()

    spec = NormLinearSpec(norm, qkv)
    found = own.bind("norm_linear", spec)(x, residual, weight, own.prepare("linear", qkv, raw(qkv)))
    assert_same(found, reference.bind("norm_linear", spec)(x, residual, weight, raw(qkv)), NEAR)
    assert own.emissions["add_norm", norm].reason is None

    mlp_spec = GatedMLPSpec(wide, GateSpec(64, "bfloat16", "silu"), back)
    wanted = own.wants("gated_mlp", mlp_spec)
    assert wanted == emitting(name, 96)
    weights = [own.prepare("linear", one, raw(one, seed)) for seed, one in enumerate((wide, back))]
    emitted, _ = own.bind("add_norm", norm.emitting(wanted))(x, residual, weight)
    plain, _ = reference.bind("add_norm", norm.emitting(wanted))(x, residual, weight)
    expected = reference.bind("gated_mlp", mlp_spec)(plain, raw(wide, 0), raw(back, 1))
    monkeypatch.setattr(mlp, "ROWS", 4)
    for between in (mlp.BETWEEN, 0):  # at once, and in stretches of rows
        monkeypatch.setattr(mlp, "BETWEEN", between)
        call = BoundOps(own.ops, own.device).bind("gated_mlp", mlp_spec)
        assert_same(call(emitted, *weights), expected, 2 * NEAR)  # rounded twice
    assert apart == []
    own.bind("linear", back)(rows(3, 64), weights[1])
    assert apart == [3]


def test_what_the_norms_do_not_emit_they_say() -> None:
    norm = both()[0].ops["rms_norm"].kernel
    for n, dtype, emit, reason in (
        (64, "float32", emitting("int8", 64), "only the native kernels emit quantised activations"),
        (64, "bfloat16", activations.INT8, "this kernel emits int8 activations"),
        (64, "bfloat16", ActSpec("int8", granularity="token", sums=16), "this kernel emits int8 activations"),
        (64, "bfloat16", dataclasses.replace(activations.INT8, sums=24), "this kernel emits int8 activations"),
        (48, "bfloat16", emitting("int8", 48), "this kernel emits int8 activations"),
    ):
        said = norm.supports(NormSpec(n, dtype, 1e-6, emit=emit))
        assert said is not None
        assert said.startswith(reason)


@pytest.mark.parametrize("schemes", [("int8", "int8"), ("int4", "int4"), ("int4", None)])
def test_experts(instructions: None, schemes: tuple[str, str | None]) -> None:
    first, second = (name and served_scheme(name, 40) for name in schemes)
    wide = LinearSpec(80, 40, "bfloat16", first, experts=3)
    back = LinearSpec(40, 40, "bfloat16", second, experts=3)
    spec = ExpertsSpec(wide, GateSpec(40, "bfloat16"), back, top_k=2, first=1)
    own, reference = both()
    x, ids = rows(9, 40), torch.tensor([[1, 3], [2, 1], [0, 2]] * 3, dtype=torch.int32)
    weights = torch.rand(9, 2, generator=torch.Generator().manual_seed(5))
    native = own.bind("experts", spec)
    assert own.choices["experts", spec].how == "native"
    packed = [own.prepare("linear", one, raw(one, seed)) for seed, one in enumerate((wide, back))]
    expected = reference.bind("experts", spec)(x, weights, ids, raw(wide, 0), raw(back, 1))
    assert_same(native(x, weights, ids, *packed), expected, NEAR)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_weight_can_be_written_again(name: str) -> None:
    spec, (own, _) = LinearSpec(150, 64, "bfloat16", served_scheme(name, 64), bias=True), both()
    packed = own.prepare("linear", spec, raw(spec, 1))
    standing = dict(packed)
    again = own.prepare("linear", spec, raw(spec, 2), packed)
    fresh = own.prepare("linear", spec, raw(spec, 2))
    for part, tensor in standing.items():
        assert again[part] is tensor
        assert torch.equal(tensor, fresh[part])


def test_what_the_kernels_do_not_take_is_the_reference_s() -> None:
    own, _ = both()
    linear = own.ops["linear"].kernel
    for dtype in ("float32", "float16"):
        reason = f"quantized weights take activations of bfloat16, not {dtype}"
        assert linear.supports(LinearSpec(8, 64, dtype, served_scheme("int8", 64))) == reason
    with kernels("torch"):
        assert CpuPlatform().scheme(candidates("int8", 64)[0]) == served_scheme("int8", 64)
        spec = LinearSpec(8, 64, "bfloat16", served_scheme("int8", 64))
        assert linear.supports(spec) == "quantized weights need the native kernels, which are not used"
