"""Weights in the parts of a scheme: near to what they were, and stored as the scheme says."""

from __future__ import annotations

import pytest
import torch

from tessera.ops.linear import linear
from tessera.ops.quantize import meaning
from tessera.platform import ActSpec, LinearSpec, Quantized, QuantSpec, Scheme, TensorSpec
from tessera.quantization import rounding
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import candidates

INT8, INT4 = candidates("int8", 64)[0], candidates("int4", 24)[0]  # a group of 8
FP8 = candidates("fp8", 24)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_int8_is_within_half_a_step_of_each_row(dtype):
    weight = (
        torch.randn(33, 24, generator=torch.Generator().manual_seed(1)).to(dtype) * torch.logspace(-9, 9, 33)[:, None]
    )
    weight = weight.to(dtype)
    parts = quantised(weight, INT8)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in parts.items()} == {
        "weight": (torch.int8, (33, 24)),
        "scale": (torch.float32, (33,)),
    }
    step = weight.float().abs().amax(-1, keepdim=True) / 127
    assert ((meaning(parts, INT8) - weight.float()).abs() <= 0.5001 * step).all()
    assert (parts["weight"].abs().amax(-1) == 127).all()


def test_int4_uses_all_sixteen_numbers_of_each_group():
    weight = torch.randn(5, 24, generator=torch.Generator().manual_seed(2))
    weight[0, 8:16] = 0.0
    weight[1, :8] = torch.tensor([4.0, -3.5, -2.0, 0.5, 0.0, 3.5, 1.0, -0.5])
    parts = quantised(weight, INT4)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in parts.items()} == {
        "weight": (torch.uint8, (5, 12)),
        "scale": (torch.bfloat16, (5, 3)),
    }
    assert parts["scale"][1, 0] == -0.5
    # -8, 7, 4, -1, 0, -7, -2, 1 with 8 added, the first of two in the low half
    assert parts["weight"][1, :4].tolist() == [0 | 15 << 4, 12 | 7 << 4, 8 | 1 << 4, 6 | 9 << 4]
    meant = meaning(parts, INT4)
    assert not meant[0, 8:16].any()
    step = parts["scale"].float().abs().repeat_interleave(8, dim=1)
    assert ((meant - weight).abs() <= 1.05 * step).all()  # what has the sign of no -8 may be cut off
    assert ((meant - weight).abs() <= 0.5001 * step).float().mean() > 0.9


def test_fp8_is_within_a_sixteenth_of_each_element():
    """Three bits of a mantissa; the smallest elements of a row are within half of the least number's step."""
    weight = torch.randn(33, 24, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 9, 33)[:, None]
    parts = quantised(weight, FP8)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in parts.items()} == {
        "weight": (torch.float8_e4m3fn, (33, 24)),
        "scale": (torch.float32, (33,)),
    }
    least = parts["scale"][:, None] * 2.0**-10
    assert ((meaning(parts, FP8) - weight).abs() <= torch.maximum(weight.abs() / 16, least) * 1.0001).all()
    assert (parts["weight"].float().abs().amax(-1) == 448).all()


@pytest.mark.parametrize("scheme", [INT8, INT4, FP8], ids=["int8", "int4", "fp8"])
def test_stretches_and_experts_change_nothing(scheme, monkeypatch):
    weight = torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(3))
    whole = quantised(weight, scheme)
    monkeypatch.setattr(rounding, "_STRETCH", 50)
    for expert in range(3):
        for name, tensor in quantised(weight[expert], scheme).items():
            assert torch.equal(tensor, whole[name][expert])


@pytest.mark.parametrize("scheme", [INT8, INT4], ids=["int8", "int4"])
def test_the_product_is_that_of_what_the_parts_mean(scheme, monkeypatch):
    """With each token rounded to 255 numbers first, its padding's NaN its own; in stretches of rows."""
    monkeypatch.setattr("tessera.ops.linear._STRETCH", 100)
    random = torch.Generator().manual_seed(4)
    weight, bias, x = (torch.randn(*shape, generator=random) for shape in ((19, 24), (19,), (6, 24)))
    x[3], parts = torch.nan, quantised(weight, scheme)
    found = linear(LinearSpec(19, 24, "float32", scheme, bias=True), x, {**parts, "bias": bias})
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    expected = (x.double() / scale).round() * scale @ meaning(parts, scheme).double().T + bias.double()
    assert torch.allclose(found.double(), expected, atol=1e-5, equal_nan=True)
    assert found[3].isnan().all()
    assert not found[:3].isnan().any()
    scaled = Quantized(x / 4, torch.full((6, 1), 4.0))
    again = linear(LinearSpec(19, 24, "float32", scheme, bias=True), scaled, {**parts, "bias": bias})
    assert torch.allclose(again, found, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(("dtype", "least", "most"), [("int8", -128.0, 127.0), ("fp8_e4m3", -448.0, 448.0)])
def test_static_activations_have_the_scale_of_the_weight(dtype, least, most):
    """What is beyond its range becomes the nearest end of it."""
    parts = {"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))}
    parts["input_scale"] = TensorSpec("float32")
    scheme = Scheme(QuantSpec("int8", "channel"), ActSpec(dtype, granularity="tensor", static=True), parts=parts)
    weight = {
        "weight": torch.eye(4, dtype=torch.int8),
        "scale": torch.full((4,), 3.0),
        "input_scale": torch.tensor(0.25),
    }
    x = torch.tensor([[1e4, -1e4, 4.1, 0.0]])
    assert linear(LinearSpec(4, 4, "float32", scheme), x, weight).tolist() == [
        [3 * most / 4, 3 * least / 4, 3 * 4.0, 0.0]  # 16.4 quarters are 16 in both
    ]


def test_fp8_has_three_bits_of_a_mantissa():
    parts = {"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", (1,))}
    scheme = Scheme(QuantSpec("fp8_e4m3", "channel"), ActSpec("fp8_e4m3", granularity="token"), parts=parts)
    weight = {"weight": torch.eye(3).to(torch.float8_e4m3fn), "scale": torch.ones(3)}
    x = torch.tensor([[448.0, 17.5, 1.06], [4.48, 0.175, 0.0106]])  # each row by its own largest
    found = linear(LinearSpec(3, 3, "float32", scheme), x, weight)
    assert torch.allclose(found, torch.tensor([[448.0, 18.0, 1.0], [4.48, 0.18, 0.01]]))
