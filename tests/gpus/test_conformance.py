"""The kit at silver, through the interpreter: a kernel that is wired to the wrong tensor is found without a GPU. Ops
alone are tried in platforms/triton/tests."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.gpus.conftest import PLATFORMS

pytestmark = [
    pytest.mark.compiler,
    # Padding is NaN, of which numpy warns, by which the interpreter takes maxima and makes int8.
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

DAILY = ("device/", "model/llama-bfloat16", "overlap/", "reads/step", "shapes/padding", "cache/triton/copy-bfloat16")
BY_TILES = ("attention/", "fused/", "model/")
"""What depends on the sizes of tiles, which differ from device to device."""


def cases() -> list[object]:
    return [
        pytest.param(
            case, id=f"{name}-{case.id}", marks=() if name == "cuda" and case.id.startswith(DAILY) else nightly
        )
        for nightly in [pytest.mark.nightly]
        for name, path in PLATFORMS.items()
        for case in conformance_cases(path)
        if (case.id.startswith(BY_TILES) if name != "cuda" else not case.id.startswith("op/"))
    ]


@pytest.mark.parametrize("case", cases())
def test_it_conforms(chip: object, case: Case) -> None:
    case.run()
