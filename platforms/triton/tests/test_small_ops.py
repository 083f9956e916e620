"""The small ops compute what their references do, on the host, by Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tessera.platform import ActivationSpec, ActSpec, BoundOps, GateSpec, NormSpec, SoftCapSpec
from tessera.testing import REFERENCE
from tessera.testing.conformance import Case, conformance_cases
from tessera.testing.reference import host_device
from tests.platforms.interpreted import Interpreted

# Kernels are interpreted if this is imported before them.
# isort: split
from tessera_triton.activations import Gate
from tessera_triton.facts import INTERPRETED, Launcher
from tessera_triton.norms import RMSNorm

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
OPS = tuple(
    f"op/{name}/" for name in ("activation", "add", "embedding", "gate", "rotary", "segment_embedding", "soft_cap")
)


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


def test_what_a_device_multiplies_is_what_is_emitted() -> None:
    """Of the two kinds of fp8, only that of the device."""
    own = replace(INTERPRETED, arch="gfx942", backend="hip", fp8="float8_e4m3fnuz")
    fn, fnuz = ActSpec("fp8_e4m3", "token"), ActSpec("fp8_e4m3fnuz", "token")
    x, weight = torch.randn(5, 72, generator=torch.Generator().manual_seed(2)), torch.ones(72)
    norm = RMSNorm(own, Launcher())
    assert norm.supports(NormSpec(72, "float32", 1e-6, emit=fn)) == "gfx942 has no float8_e4m3fn"
    assert norm.supports(NormSpec(72, "float32", 1e-6, emit=fnuz)) is None
    assert Gate(INTERPRETED, Launcher()).supports(GateSpec(72, "float32", emit=fnuz)) == "sm_90 has no float8_e4m3fnuz"
    found = norm.bind(NormSpec(72, "float32", 1e-6, emit=fnuz), None, None)(x, weight)
    plain = REFERENCE["rms_norm"].reference(NormSpec(72, "float32", 1e-6), x, weight)
    assert found.data.dtype is torch.float8_e4m3fnuz
    torch.testing.assert_close(found.scale, plain.abs().amax(-1, keepdim=True) / 240, rtol=1e-6, atol=0)
    assert ((found.data.float() * found.scale - plain).abs() <= plain.abs() / 16 + found.scale / 256).all()


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
