"""Products by humming, over a stand-in."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from tessera.platform import ActSpec, BoundOps, LinearSpec, PackedEmbeddingSpec, QuantSpec, Scheme, TensorSpec
from tessera.platform import replace as with_kernels
from tessera.testing import REFERENCE
from tessera.testing.reference import host_device
from tessera_triton import TARGETS, Launcher

pytest.importorskip("triton")

from tessera_cuda.humming import FORWARD, TRANSFORM, Humming, HummingOrTritonLinear, kernels, package, why_triton
from tessera_cuda.platform import CudaPlatform
from tessera_triton.products import Linear
from tessera_triton.providers import Provider

H200 = TARGETS["sm_90"]
MODULE = "tests.platforms.providers.humming"
STAND_IN = Humming(Provider("humming", MODULE, TRANSFORM), Provider("humming", MODULE, FORWARD))
N, K = 128, 256
INT4, INT8 = QuantSpec("int4", "group", 64), QuantSpec("int8", "group", 128)
INT8_BY_OUTPUT = QuantSpec("int8", "channel")


def scheme(weight=INT4, scale="bfloat16", **facts):
    element = TensorSpec("uint8", (1, 2)) if weight.dtype == "int4" else TensorSpec("int8", (1, 1))
    per = (1, weight.group) if weight.group else (1,)
    weight = replace(weight, scale_dtype=scale)
    return Scheme(weight, **{"parts": {"weight": element, "scale": TensorSpec(scale, per)}, **facts})


def weight(of, dtype, *, bias=True, seed=0):
    random = torch.Generator().manual_seed(seed)
    shape = (N, K // of.group) if of.group else (N,)
    if of.dtype == "int4":
        stored = torch.randint(0, 256, (N, K // 2), generator=random, dtype=torch.uint8)
    else:
        stored = torch.randint(-128, 128, (N, K), generator=random, dtype=torch.int8)
    parts = {"weight": stored, "scale": (torch.randn(shape, generator=random) / 64).to(dtype)}
    return {**parts, "bias": torch.randn(N, generator=random).to(dtype)} if bias else parts


@pytest.mark.parametrize("of", [INT4, INT8, INT8_BY_OUTPUT], ids=str)
@pytest.mark.parametrize(("dtype", "bias"), [("bfloat16", True), ("float16", False)])
def test_a_product_is_what_its_reference_computes(of, dtype, bias):
    kind = getattr(torch, dtype)
    spec, parts = LinearSpec(N, K, dtype, scheme(of, dtype), bias=bias), weight(of, kind, bias=bias)
    ops = BoundOps(with_kernels(REFERENCE, **kernels(H200, Launcher(), STAND_IN)), host_device())
    x = torch.randn(5, 2 * K, generator=torch.Generator().manual_seed(1)).to(kind)[:, ::2]
    expected = REFERENCE["linear"].reference(spec, x, parts)
    packed, call = ops.prepare("linear", spec, parts), ops.bind("linear", spec)
    torch.testing.assert_close(call(x, packed), expected)
    out = torch.empty(5, N, dtype=kind)
    assert call(x, packed, out=out) is out
    torch.testing.assert_close(out, expected)
    assert call(x[:0], packed).shape == (0, N)


@pytest.mark.parametrize("of", [INT4, INT8, INT8_BY_OUTPUT], ids=str)
def test_a_weight_that_is_prepared_again_keeps_its_address_and_size(of):
    kernel, spec = (
        HummingOrTritonLinear(H200, Launcher(), STAND_IN),
        LinearSpec(N, K, "bfloat16", scheme(of), bias=True),
    )
    raw = weight(of, torch.bfloat16)
    first = kernel.prepare(spec, raw)
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    other = weight(of, torch.bfloat16, seed=2)
    again = kernel.prepare(spec, other, first)
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == places
    assert torch.equal(again["weight"], kernel.prepare(spec, other)["weight"])
    assert sum(tensor.nbytes for tensor in again.values()) == sum(tensor.nbytes for tensor in raw.values())
    assert kernel.packed_bytes(spec) is None
    assert torch.equal(raw["weight"], weight(of, torch.bfloat16)["weight"])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LinearSpec(N, K, "bfloat16"), "no weights in int4 or int8 without zero points"),
        (LinearSpec(N, K, "bfloat16", scheme(replace(INT4, symmetric=False))), "no weights in int4 or int8 without"),
        (LinearSpec(N, K, "bfloat16", scheme(activation=ActSpec("int8", "token"))), "activations are quantized"),
        (LinearSpec(N, K, "float16", scheme()), "activations in float16 and scales in bfloat16"),
        (
            LinearSpec(N, K, "bfloat16", scheme(INT8_BY_OUTPUT, "float32")),
            "activations in bfloat16 and scales in float",
        ),
        (LinearSpec(N, K, "bfloat16", scheme(replace(INT4, group=16))), "scales of neither outputs nor groups of 32,"),
        (LinearSpec(N + 64, K, "bfloat16", scheme()), "outputs or inputs are no multiple of 128"),
        (LinearSpec(N, K + 64, "bfloat16", scheme()), "outputs or inputs are no multiple of 128"),
    ],
)
def test_triton_computes_what_the_package_does_not_take(spec, why):
    own, library = HummingOrTritonLinear(H200, Launcher(), STAND_IN), Linear(H200, Launcher())
    assert why_triton(spec).startswith(why)
    assert own.supports(spec) == library.supports(spec)
    assert own.packed_bytes(spec) == library.packed_bytes(spec)


def test_a_weight_that_the_package_arranged_is_not_looked_up_in():
    lookup = kernels(H200, Launcher(), STAND_IN)["packed_embedding"]
    theirs, ours = LinearSpec(N, K, "bfloat16", scheme()), LinearSpec(N + 64, K, "bfloat16", scheme())
    assert lookup.supports(PackedEmbeddingSpec(theirs)) == "the weight is packed for a package that only multiplies"
    assert lookup.supports(PackedEmbeddingSpec(ours)) is None


def test_the_stand_in_has_the_arguments_of_the_published_functions():
    said = {}
    for name in ("transform", "schema", "forward"):
        text = (Path(__file__).parent / f"humming_{name}.json").read_text(encoding="utf-8")
        said.update(json.loads(text)["functions"])
    stand_in, fields = import_module(MODULE), said.pop("HummingWeightSchema")
    assert said == {name: str(inspect.signature(getattr(stand_in, name))) for name in said}
    assert said.keys() | {"HummingWeightSchema"} == TRANSFORM.keys() | FORWARD.keys()
    known = inspect.signature(stand_in.HummingWeightSchema).parameters.values()
    bare = (parameter.replace(annotation=inspect.Parameter.empty) for parameter in known)
    assert fields == str(inspect.Signature(bare))


@pytest.mark.parametrize("part", ["transform", "forward"])
def test_a_package_that_cannot_be_imported_is_named_in_one_line(part, caplog):
    broken = replace(STAND_IN, **{part: Provider("humming", "tests.platforms.no_such_module", {})})
    assert kernels(H200, Launcher(), broken) == {}
    (record,) = caplog.records
    assert record.getMessage().startswith("humming is not used: tests.platforms.no_such_module cannot be imported")
    assert record.exc_info is None


def test_the_platform_takes_part_of_its_kernels_from_the_package(monkeypatch):
    monkeypatch.setattr(CudaPlatform, "_compiled_facts", lambda self: H200)
    assert package().transform.absent == "humming is not installed"
    assert type(CudaPlatform().ops(REFERENCE)["linear"].kernel) is Linear
    monkeypatch.setattr("tessera_cuda.humming.package", lambda: STAND_IN)
    assert type(CudaPlatform().ops(REFERENCE)["linear"].kernel) is HummingOrTritonLinear
    monkeypatch.setattr(CudaPlatform, "_compiled_facts", lambda self: None)
    assert CudaPlatform().ops(REFERENCE) is REFERENCE
