"""Products by aiter, over a stand-in. That activations are quantized on the way is tested in
tests/gpus/test_aiter_products.py."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera.platform import ActSpec, BoundOps, LinearSpec, Quantized, QuantizeSpec, QuantSpec, Scheme, TensorSpec
from tessera.platform import replace as with_kernels
from tessera.testing import REFERENCE
from tessera.testing.reference import host_device
from tessera_triton import TARGETS, Launcher

pytest.importorskip("triton")

from tessera_rocm.aiter_products import PRODUCT_TAKES, AiterOrTritonLinear, kernels, provider, why_triton
from tessera_rocm.platform import RocmPlatform
from tessera_triton.products import Linear
from tessera_triton.providers import Provider
from tests.platforms.providers import aiter_products

MI300X, MI355X = TARGETS["gfx942"], TARGETS["gfx950"]
STAND_IN = Provider("aiter", "tests.platforms.providers.aiter_products", {})
N, K = 24, 512
INT8, FP8, FNUZ = ("int8", "int8"), ("fp8_e4m3", "float8_e4m3fn"), ("fp8_e4m3fnuz", "float8_e4m3fnuz")


def scheme(dtype="int8", stored="int8", weight=None, activation=None):
    parts = {"weight": TensorSpec(stored, (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(
        replace(QuantSpec(dtype, "channel"), **(weight or {})),
        replace(ActSpec(dtype, "token"), **(activation or {})),
        parts=parts,
    )


def numbers(random, stored, *shape):
    if stored == "int8":
        return torch.randint(-127, 128, shape, generator=random, dtype=torch.int8)
    return torch.randn(shape, generator=random).to(getattr(torch, stored))


def weight(stored, bias=None, seed=0):
    random = torch.Generator().manual_seed(seed)
    parts = {"weight": numbers(random, stored, N, K), "scale": torch.rand(N, generator=random) / 64}
    return parts if bias is None else {**parts, "bias": torch.randn(N, generator=random).to(bias)}


def quantized(spec, x):
    """As the op before a product gives it, here with gaps between elements."""
    found = REFERENCE["quantize"].reference(QuantizeSpec(spec.k, spec.dtype, spec.scheme.activation), x)
    spread = torch.empty(len(x), 2 * spec.k, dtype=found.data.dtype)[:, ::2].copy_(found.data)
    return Quantized(spread, found.scale)


@pytest.mark.parametrize(
    ("facts", "kind", "dtype", "bias"),
    [
        (MI300X, INT8, "bfloat16", False),
        (MI300X, INT8, "float16", True),
        (MI355X, FP8, "bfloat16", False),
        (MI300X, FNUZ, "bfloat16", False),
    ],
)
def test_a_product_is_what_its_reference_computes(facts, kind, dtype, bias):
    torch_dtype = getattr(torch, dtype)
    spec, parts = LinearSpec(N, K, dtype, scheme(*kind), bias=bias), weight(kind[1], torch_dtype if bias else None)
    assert why_triton(spec, facts.fp8) is None
    ops = BoundOps(with_kernels(REFERENCE, **kernels(facts, Launcher(), STAND_IN)), host_device())
    x = quantized(spec, torch.randn(5, K, generator=torch.Generator().manual_seed(1)).to(torch_dtype))
    expected = REFERENCE["linear"].reference(spec, x, parts)
    packed, call = ops.prepare("linear", spec, parts), ops.bind("linear", spec)
    torch.testing.assert_close(call(x, packed), expected)
    out = torch.empty(5, N, dtype=torch_dtype)
    assert call(x, packed, out=out) is out
    torch.testing.assert_close(out, expected)
    assert call(Quantized(x.data[:0], x.scale[:0]), packed).shape == (0, N)


def test_a_weight_that_is_prepared_again_keeps_its_address():
    kernel, spec = AiterOrTritonLinear(MI300X, Launcher()), LinearSpec(N, K, "bfloat16", scheme())
    raw = weight("int8")
    first = kernel.prepare(spec, {**raw, "weight": raw["weight"].T.contiguous().T})
    assert first["weight"].is_contiguous()
    place = first["weight"].data_ptr()
    again = kernel.prepare(spec, weight("int8", seed=2), first)
    assert again["weight"].data_ptr() == place
    assert torch.equal(again["weight"], weight("int8", seed=2)["weight"])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LinearSpec(N, K, "bfloat16"), "weights and activations are not both in int8"),
        (LinearSpec(N, K, "bfloat16", replace(scheme(), activation=None)), "weights and activations are not both"),
        (LinearSpec(N, K, "bfloat16", scheme(*FP8)), "weights and activations are not both in int8"),
        (LinearSpec(N, K, "bfloat16", scheme(activation={"granularity": "group", "group": 128})), "no scale for each"),
        (LinearSpec(N, K, "bfloat16", scheme(activation={"granularity": "tensor", "static": True})), "no scale for"),
        (LinearSpec(N, K, "float32", scheme()), "results in float32 and scales in float32"),
        (LinearSpec(N, K, "bfloat16", scheme(*FNUZ), bias=True), "fp8 with a bias"),
        (LinearSpec(N + 1, K, "bfloat16", scheme()), "not a multiple of 8 outputs and of 256 inputs"),
        (LinearSpec(N, K + 128, "bfloat16", scheme()), "not a multiple of 8 outputs and of 256 inputs"),
    ],
)
def test_triton_computes_what_the_package_does_not_take(spec, why):
    own, library = AiterOrTritonLinear(MI300X, Launcher()), Linear(MI300X, Launcher())
    assert why_triton(spec, own.facts.fp8).startswith(why)
    assert own.supports(spec) == library.supports(spec)


def test_the_arguments_are_those_of_the_published_function():
    said = json.loads((Path(__file__).parent / "aiter_products.json").read_text(encoding="utf-8"))["functions"]
    published = tuple(re.findall(r"(\w+)(?:=[\w.]+)?(?:, |\))", said["gemm_a8w8"]))
    assert published == tuple(inspect.signature(aiter_products.gemm_a8w8).parameters)
    assert published[: len(PRODUCT_TAKES)] == PRODUCT_TAKES


@pytest.mark.parametrize("name", ["gfx90a", "gfx1100", "gfx1201"])
def test_other_cards_do_not_import_the_package(name, caplog):
    broken = Provider("aiter", "tests.platforms.no_such_module", {})
    assert kernels(TARGETS[name], Launcher(), broken) == {}
    assert not caplog.records


def test_a_package_that_cannot_be_imported_is_named_in_one_line(caplog):
    broken = Provider("aiter", "tests.platforms.no_such_module", {})
    assert kernels(MI300X, Launcher(), broken) == {}
    (record,) = caplog.records
    assert record.getMessage().startswith("aiter is not used: tests.platforms.no_such_module cannot be imported")


def test_an_op_with_other_arguments_is_not_called(caplog, monkeypatch):
    monkeypatch.setattr("tessera_rocm.aiter_products.PRODUCT_TAKES", (*PRODUCT_TAKES, "more"))
    assert kernels(MI300X, Launcher(), STAND_IN) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "aiter is not used for products: aiter::gemm_a8w8 does not take more here; install another version"
    ]


def test_the_platform_takes_part_of_its_kernels_from_the_package(monkeypatch):
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: MI300X)
    assert provider().absent == "aiter is not installed"
    assert type(RocmPlatform().ops(REFERENCE)["linear"].kernel) is Linear
    monkeypatch.setattr("tessera_rocm.aiter_products.provider", lambda: STAND_IN)
    assert type(RocmPlatform().ops(REFERENCE)["linear"].kernel) is AiterOrTritonLinear
    monkeypatch.setattr(RocmPlatform, "_compiled_facts", lambda self: None)
    assert RocmPlatform().ops(REFERENCE) is REFERENCE
