"""Products in 8-bit floats: which a device has, and what becomes of a weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.platform import LinearSpec
from tessera.testing import candidates
from tessera_gaudi.fp8 import FN, NARROW, Linear, on_device

FP8, INT8 = (candidates(name, 64)[0] for name in ("fp8", "int8"))
SPEC = LinearSpec(48, 64, "bfloat16", FP8)
OP = object()


@pytest.mark.parametrize(("device", "kind"), [("GAUDI3", FN), ("GAUDI2", NARROW), ("GAUDI2B", NARROW)])
def test_a_scheme_gets_the_devices_kind(device, kind):
    made = on_device(FP8, device)
    assert (made.weight.dtype, made.activation.dtype) == (kind, kind)
    assert made.parts == FP8.parts


def test_the_first_gaudi_has_none_and_other_schemes_stay():
    assert on_device(FP8, "GAUDI") == "GAUDI has no 8-bit floats"
    assert on_device(INT8, "GAUDI") is INT8


def test_on_gaudi_2_a_weight_is_halved_and_its_scales_are_doubled():
    kernel, spec = Linear(OP, OP), replace(SPEC, scheme=on_device(FP8, "GAUDI2"))
    raw = {
        "weight": torch.tensor([[448.0, -3.5, 0.25, 0.0]]).to(torch.float8_e4m3fn),
        "scale": torch.tensor([0.5]),
        "bias": torch.tensor([1.0]),
    }
    packed = kernel.prepare(spec, raw)
    assert packed["weight"].dtype == torch.float8_e4m3fn
    assert packed["weight"].float().tolist() == [[224.0, -1.75, 0.125, 0.0]]
    assert (packed["scale"].tolist(), packed["bias"].tolist()) == ([1.0], [1.0])
    assert kernel.prepare(SPEC, raw)["weight"] is raw["weight"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (SPEC, None),
        (replace(SPEC, scheme=None), "torch's own product"),
        (replace(SPEC, dtype="float32"), "no products of experts, and none but in bfloat16"),
        (replace(SPEC, experts=3), "no products of experts, and none but in bfloat16"),
        (replace(SPEC, scheme=INT8), "no weights but in fp8 with a scale for each output or for all"),
        (
            replace(SPEC, scheme=replace(FP8, activation=None)),
            "no activations but in fp8 with a scale for each token or for all",
        ),
    ],
)
def test_what_is_not_taken_is_said(spec, reason):
    assert Linear(OP, OP).supports(spec) == reason
    assert Linear(OP, "no cast").supports(spec) == "no cast"
