"""Products by vllm-xpu-kernels, over a stand-in with the schema of the published wheel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.platform import ActSpec, BoundOps, LinearSpec, PackedEmbeddingSpec, QuantSpec, Scheme, TensorSpec
from tessera.platform import replace as with_kernels
from tessera.testing import REFERENCE
from tessera.testing.reference import host_device
from tessera_triton import DeviceFacts, Launcher

pytest.importorskip("triton")

from tessera_triton.products import Linear
from tessera_triton.providers import Provider
from tessera_xpu.platform import XpuPlatform
from tessera_xpu.vllm_kernels import INT4_PRODUCT_TAKES, VllmOrTritonLinear, kernels, provider, why_triton
from tests.platforms.providers.vllm_xpu_kernels import SCHEMAS

B580 = DeviceFacts("xpu", "Intel(R) Arc(TM) B580 Graphics", 32, 128 << 10, 20)
STAND_IN = Provider("vllm_xpu_kernels", "tests.platforms.providers.vllm_xpu_kernels", {})
GROUP, N, K = 32, 24, 96


def scheme(scale="bfloat16", **weight):
    parts = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec(scale, (1, GROUP))}
    return Scheme(replace(QuantSpec("int4", "group", GROUP, scale_dtype=scale), **weight), parts=parts)


def weight(scale=torch.bfloat16, seed=0):
    random = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randint(0, 256, (N, K // 2), generator=random, dtype=torch.uint8),
        "scale": torch.rand(N, K // GROUP, generator=random).to(scale),
        "bias": torch.randn(N, generator=random).to(scale),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_what_its_reference_computes(dtype, bias):
    kind = getattr(torch, dtype)
    spec, parts = LinearSpec(N, K, dtype, scheme(dtype), bias=bias), weight(kind)
    if not bias:
        del parts["bias"]
    ops = BoundOps(with_kernels(REFERENCE, **kernels(B580, Launcher(), STAND_IN)), host_device())
    x = torch.randn(5, 2 * K, generator=torch.Generator().manual_seed(1)).to(kind)[:, ::2]
    expected = REFERENCE["linear"].reference(spec, x, parts)
    packed = ops.prepare("linear", spec, parts)
    call = ops.bind("linear", spec)
    torch.testing.assert_close(call(x, packed), expected)
    out = torch.empty(5, N, dtype=kind)
    assert call(x, packed, out=out) is out
    torch.testing.assert_close(out, expected)


def test_a_weight_that_is_prepared_again_keeps_its_address():
    kernel, spec = VllmOrTritonLinear(B580, Launcher()), LinearSpec(N, K, "bfloat16", scheme(), bias=True)
    first = kernel.prepare(spec, weight())
    places = {name: tensor.data_ptr() for name, tensor in first.items()}
    again = kernel.prepare(spec, weight(seed=2), first)
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == places
    assert torch.equal(again["weight"], kernel.prepare(spec, weight(seed=2))["weight"])
    assert sum(tensor.nbytes for tensor in again.values()) == sum(tensor.nbytes for tensor in weight().values())
    assert kernel.packed_bytes(spec) is None


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LinearSpec(N, K, "bfloat16"), "no weights in int4 without zero points"),
        (LinearSpec(N, K, "bfloat16", scheme(symmetric=False)), "no weights in int4 without zero points"),
        (
            LinearSpec(N, K, "bfloat16", replace(scheme(), activation=ActSpec("int8", "token"))),
            "activations are quantized",
        ),
        (LinearSpec(N, K, "float16", scheme()), "activations in float16 and scales in bfloat16"),
        (LinearSpec(N + 1, K, "bfloat16", scheme()), "not a multiple of 8 outputs and of 32 inputs"),
    ],
)
def test_triton_computes_what_the_package_does_not_take(spec, why):
    own, library = VllmOrTritonLinear(B580, Launcher()), Linear(B580, Launcher())
    assert why_triton(spec).startswith(why)
    assert own.supports(spec) == library.supports(spec)
    assert own.packed_bytes(spec) == library.packed_bytes(spec)


def test_a_weight_that_the_package_packs_is_not_looked_up_in():
    lookup = kernels(B580, Launcher(), STAND_IN)["packed_embedding"]
    theirs, ours = LinearSpec(N, K, "bfloat16", scheme()), LinearSpec(N, K, "bfloat16", scheme(symmetric=False))
    assert lookup.supports(PackedEmbeddingSpec(theirs)) == "the weight is packed for a package that only multiplies"
    assert lookup.supports(PackedEmbeddingSpec(ours)) is None


def test_the_arguments_are_those_of_the_published_wheel():
    (schema,) = (torch._C.parse_schema(said) for said in SCHEMAS if said.startswith("int4_gemm_w4a16("))
    assert tuple(argument.name for argument in schema.arguments) == INT4_PRODUCT_TAKES
    assert not any(argument.alias_info and argument.alias_info.is_write for argument in schema.arguments)


def test_without_the_package_the_kernels_are_tritons():
    assert provider().absent == "vllm_xpu_kernels is not installed"
    assert kernels(B580, Launcher(), provider()) == {}


def test_a_package_that_cannot_be_imported_is_named_in_one_line(caplog):
    broken = Provider("vllm_xpu_kernels", "tests.platforms.no_such_module", {})
    assert kernels(B580, Launcher(), broken) == {}
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "vllm_xpu_kernels is not used: tests.platforms.no_such_module cannot be imported (ModuleNotFoundError: "
    )
    assert record.exc_info is None


def test_an_op_with_other_arguments_is_not_called(caplog, monkeypatch):
    monkeypatch.setattr("tessera_xpu.vllm_kernels.INT4_PRODUCT_TAKES", (*INT4_PRODUCT_TAKES, "more"))
    assert kernels(B580, Launcher(), STAND_IN) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "vllm_xpu_kernels is not used: _xpu_C::int4_gemm_w4a16 does not take more here; install version 0.1.16"
    ]


def test_the_platform_takes_part_of_its_kernels_from_the_package(monkeypatch):
    monkeypatch.setattr(XpuPlatform, "_compiled_facts", lambda self: B580)
    assert type(XpuPlatform().ops(REFERENCE)["linear"].kernel) is Linear
    monkeypatch.setattr("tessera_xpu.vllm_kernels.provider", lambda: STAND_IN)
    assert type(XpuPlatform().ops(REFERENCE)["linear"].kernel) is VllmOrTritonLinear
    monkeypatch.setattr(XpuPlatform, "_compiled_facts", lambda self: None)
    assert XpuPlatform().ops(REFERENCE) is REFERENCE
