"""What the kit tries: every op that the platform overrides, attention, the cache's layout, tiny models; with the best
instruction set, with each lesser one what is native, and without native kernels."""

from __future__ import annotations

import os

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tessera_cpu.platform import CpuPlatform
from tests.platforms.cpu_kernels import available, kernels

PLATFORM = f"{CpuPlatform.__module__}:{CpuPlatform.__name__}"
NATIVE = (
    "op/linear",
    "op/rms_norm",
    "op/add_norm",
    "op/norm_add",
    "op/add",
    "op/layer_norm",
    "op/add_layer_norm",
    "op/activation",
    "op/gate",
    "op/sigmoid_gate",
    "op/soft_cap",
    "op/mlp",
    "op/embedding",
    "op/packed_embedding",
    "op/gated_mlp",
    "op/experts",
    "op/moe",
    "op/route",
    "op/sample",
    "op/logprobs",
    "attention/native",
    "fused/native",
    "cache/native",
    "state/native",
    "encoder/native",
    "latent/native",
    "sparse/native",
    "scheme/int",
    "packed/int",
    "batch-invariant",
)


def lesser() -> list[object]:
    """The native cases of instruction sets that a better one of this processor hides."""
    return [
        pytest.param(name, case, id=f"{name}-{case}", marks=pytest.mark.nightly)
        for name in available()[1:]
        for case in conformance_cases(PLATFORM)
        if case.id.startswith(NATIVE)
    ]


def without_native() -> list[object]:
    with kernels("torch"):
        cases = conformance_cases(PLATFORM)
    return [pytest.param(case, id=str(case), marks=pytest.mark.nightly) for case in cases]


def test_there_are_native_kernels() -> None:
    if not available() and os.environ.get("TESSERA_REQUIRE_ALL") != "1":
        pytest.skip("the native kernels were not built: no C++ compiler")
    assert available()[-1] == "portable"


@pytest.mark.parametrize("case", conformance_cases(PLATFORM), ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()


@pytest.mark.parametrize(("name", "case"), lesser())
def test_every_instruction_set_conforms(name: str, case: Case) -> None:
    with kernels(name):
        case.run()


@pytest.mark.parametrize("case", without_native())
def test_it_conforms_on_torchs_kernels_alone(case: Case) -> None:
    with kernels("torch"):
        case.run()
