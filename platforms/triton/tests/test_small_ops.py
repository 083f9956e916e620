"""The small ops compute what their references do, on the host, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tessera.platform import ActivationSpec, ActSpec, BoundOps, GateSpec, SoftCapSpec
from tessera.testing import REFERENCE
from tessera.testing.conformance import Case, conformance_cases
from tessera.testing.reference import host_device
from tests.platforms.interpreted import Interpreted

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
OPS = tuple(f"op/{name}/" for name in ("activation", "add", "embedding", "gate", "rotary", "soft_cap"))


@pytest.mark.parametrize("case", [case for case in conformance_cases(PLATFORM) if case.id.startswith(OPS)], ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_gate_quantizes_each_token(dtype: str) -> None:
    spec = GateSpec(45, "float32", emit=ActSpec(dtype, "token"))
    assert Interpreted().ops(REFERENCE)["gate"].kernel.supports(spec) is None
    x = torch.randn(7, 90, generator=torch.Generator().manual_seed(1)) * 3
    found, expected = (
        BoundOps(ops, host_device(), {}).bind("gate", spec)(x) for ops in (Interpreted().ops(REFERENCE), REFERENCE)
    )
    assert found.data.dtype is expected.data.dtype
    torch.testing.assert_close(found.scale, expected.scale, rtol=1e-6, atol=0)
    # Where x / scale lies halfway between two numbers, rounding errors decide.
    off = (found.data.float() - expected.data.float()).abs()
    assert off.max() <= (1 if dtype == "int8" else 32)
    assert (off > 0).float().mean() < 0.01


def test_a_gate_declines_what_it_does_not_emit() -> None:
    kernel = Interpreted().ops(REFERENCE)["gate"].kernel
    for emit in (ActSpec("int8", "tensor"), ActSpec("int8", "group", group=16), ActSpec("int8", "token", sums=8)):
        assert "one scale per token" in kernel.supports(GateSpec(64, "float32", emit=emit))


def test_large_numbers_have_finite_activations() -> None:
    x = torch.tensor([[-1e12, -100.0, -20.0, -1e-30, 0.0, 1e-30, 20.0, 100.0, 1e12, 2.5]])
    ops = BoundOps(Interpreted().ops(REFERENCE), host_device(), {})
    for name in ("silu", "gelu", "gelu_tanh"):
        spec = ActivationSpec(10, "float32", name)
        expected = REFERENCE["activation"].reference(spec, x)
        torch.testing.assert_close(ops.bind("activation", spec)(x), expected, rtol=1e-5, atol=1e-12)
    capped = ops.bind("soft_cap", SoftCapSpec(10, "float32", cap=30.0))(x)
    torch.testing.assert_close(capped, torch.tanh(x / 30) * 30, rtol=1e-6, atol=0)
