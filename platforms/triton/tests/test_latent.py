"""Latent attention computes what its definition says, on the host, by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tessera.platform import LatentSpec
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance import Case, conformance_cases
from tessera.testing.latent import SIZES, LatentCase, LatentTrial
from tessera.testing.sparse_attention import SparseLatentCase, SparseLatentTrial
from tessera_triton import TARGETS, Launcher, TritonLatentAttention, TritonSparseLatentAttention
from tessera_triton.facts import INTERPRETED, DeviceFacts
from tests.platforms.interpreted import Interpreted

# Tokens between rows hold NaN, which NumPy, unlike a device, reports where it compares and rounds it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

KINDS = ("latent/", "sparse/triton-sparse-latent/")
DAILY = (
    "latent/triton-latent/chunks-spaced-bfloat16",
    "latent/triton-latent/fused-half-float32",
    "sparse/triton-sparse-latent/fused-bfloat16",
)


def _cases() -> Iterator[Any]:
    for case in conformance_cases(f"{Interpreted.__module__}:{Interpreted.__name__}"):
        if case.id.startswith(KINDS):
            yield pytest.param(case, id=case.id, marks=() if case.id in DAILY else pytest.mark.nightly)


@pytest.mark.parametrize("case", list(_cases()))
def test_it_conforms(case: Case) -> None:
    assert case.run().status == "passed"


class Noting(Launcher):
    """Notes what is launched, and with which options last."""

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, dict[str, Any]] = {}

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.options[kernel.fn.__name__] = options
        super().__call__(kernel, grid, *arguments, **options)


SKEWED = LatentCase(((1, 300), (1, 3), (1, 1)), padding=2)
VERIFY = LatentCase(((3, 270), (1, 40), (5, 7)), verifies=True, stride=6, padding=3, heads=7, dtype="bfloat16")
IN_PIECES = LatentCase(((1, 300), (30, 50)), 48, heads=3, rank=136, rope_dim=18, nope_dim=11, dtype="bfloat16")


@pytest.mark.parametrize(
    ("case", "facts", "launched"),
    [
        (SKEWED, INTERPRETED, {"absorbed_rows", "combine_parts"}),
        (VERIFY, INTERPRETED, {"absorbed_rows", "combine_parts"}),
        (IN_PIECES, TARGETS["gfx942"], {"absorbed_rows", "combine_parts", "absorbed_tiles"}),
    ],
    ids=("skewed", "verify-spaced", "in-pieces"),
)
def test_long_rows_are_divided(case: LatentCase, facts: DeviceFacts, launched: set[str]) -> None:
    launch = Noting()
    made = LatentTrial(TritonLatentAttention(replace(facts, processors=5), launch), case)
    for found, expected in zip(made.run(), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert launch.options.keys() == {"latent_input", *launched}
    pieces = launch.options["absorbed_rows"]
    assert (pieces["PIECE"] < pieces["BLOCK_R"]) == (case is IN_PIECES)


SELECTED = SparseLatentCase(((1, 300), (1, 20), (2, 40)), 48, limit=270, heads=18, stride=3, padding=1)


def test_long_selections_are_divided() -> None:
    launch = Noting()
    made = SparseLatentTrial(TritonSparseLatentAttention(replace(INTERPRETED, processors=16), launch), SELECTED)
    for found, expected in zip(made.run(), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[SELECTED.dtype]) is None
    assert launch.options["absorbed_rows"]["SELECTS"] == 270


PROMPTS = LatentCase(((1, 20), (128, 140), (9, 60)), 48, heads=18, padding=3, dtype="bfloat16", **SIZES[1])


@pytest.mark.parametrize(
    ("case", "launched"),
    [
        (PROMPTS, {"absorbed_rows", "absorbed_tiles", "prefill_tiles"}),
        (replace(PROMPTS, rows=((128, 129),), heads=3), {"prefill_tiles"}),
    ],
    ids=("beside-others", "alone"),
)
def test_keys_and_values_of_long_rows_are_computed(case: LatentCase, launched: set[str]) -> None:
    launch = Noting()
    made = LatentTrial(TritonLatentAttention(INTERPRETED, launch), case)
    made.run()
    launch.options.clear()
    for found, expected in zip(made.attended(into_nan=True), made.expected(), strict=True):
        assert difference(found.double(), expected, TOLERANCES[case.dtype]) is None
    assert launch.options.keys() == launched


def test_it_says_what_it_does_not_take() -> None:
    backend, spec = TritonLatentAttention(INTERPRETED), LatentCase(((1, 1),)).spec()
    assert backend.supports(spec) is None
    assert backend.supports(replace(spec, dtype="float64")) == "no kernels for float64"
    assert backend.supports(replace(spec, dtype="bfloat16")) == "latents in float32"
    wide = replace(spec, cache=LatentSpec(576, 64, "float32"))
    assert backend.supports(wide) == "latents of 576 + 64, more than 512 + 64"
    assert TritonSparseLatentAttention(INTERPRETED).supports(replace(SELECTED.spec(), dtype="int8")) is not None
