"""8-bit floats of devices that have a kind of their own. In `fnuz` a byte means half of what it means in `fn`, there is
no negative zero, and its byte is the only NaN (OCP 8-bit floating point specification 1.0; AMD's CDNA 3 ISA, 7.2)."""

from __future__ import annotations

from dataclasses import replace

import torch

from tessera.platform import Packed, Reason, Scheme, TensorSpec
from tessera_triton.facts import DeviceFacts

FN, FNUZ = "fp8_e4m3", "fp8_e4m3fnuz"
_NEGATIVE_ZERO, _NAN = 0x80, 0x7F


def on_device(scheme: Scheme, facts: DeviceFacts) -> Scheme | Reason:
    """The scheme in the kind of fp8 that a device multiplies, or why it multiplies none."""
    activation = scheme.activation
    if FN not in (scheme.weight.dtype, activation.dtype if activation is not None else ""):
        return scheme
    if facts.fp8 is None:
        return f"{facts.name} has no 8-bit floats"
    if facts.fp8 == "float8_e4m3fn":
        return scheme
    weight, parts = scheme.weight, dict(scheme.parts)
    if weight.dtype == FN:
        weight = replace(weight, dtype=FNUZ)
        parts["weight"] = TensorSpec(facts.fp8, parts["weight"].per)
    if activation is not None and activation.dtype == FN:
        activation = replace(activation, dtype=FNUZ)
    return replace(scheme, weight=weight, activation=activation, parts=parts)


def in_fnuz(raw: Packed) -> Packed:
    """The parts of a weight in fn -> the same numbers in fnuz: the same bytes, with scales twice as large."""
    bits = raw["weight"].view(torch.uint8)
    nan = (bits & _NAN) == _NAN
    bits = torch.where(bits == _NEGATIVE_ZERO, 0, bits).masked_fill_(nan, _NEGATIVE_ZERO)
    parts = {**raw, "weight": bits.view(torch.float8_e4m3fnuz), "scale": raw["scale"] * 2}
    if "input_scale" in raw:
        parts["input_scale"] = raw["input_scale"] * 2
    return parts
