"""The kit at silver, through the interpreter: a kernel that is wired to the wrong tensor is found without a GPU. Ops
alone, encoder attention, latent attention and mixers that keep a state are tried in platforms/triton/tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.gpus.conftest import PLATFORMS
from tests.platforms.on_page import answers_as_the_page_says

pytestmark = [
    pytest.mark.compiler,
    # Padding is NaN, of which numpy warns, by which the interpreter takes maxima and makes int8.
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    # A soft cap takes the exponent of a large score, which is infinite there too, and as meant.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

DAILY = ("device/", "model/llama-bfloat16", "overlap/", "reads/step", "shapes/padding", "cache/triton/copy-bfloat16")
BY_TILES = (
    "attention/", "fused/", "model/", "encoder/triton-encoder/plain-", "encoder/triton-encoder/heads-of-",
    "latent/triton-latent/served-",
)  # fmt: skip
"""What depends on the sizes of tiles, which differ from device to device."""
ALONE = ("op/", "encoder/", "latent/", "sparse/triton-sparse-latent/", "state/")
"""What platforms/triton/tests try."""


ABSENT = (
    "device/manifest", "collectives", "overlap/workers", "batch-invariant/", "attention/triton/far-apart",
    "attention/aiter/lse-",
)  # fmt: skip
"""What a platform without a manifest has not on one device of 256 MiB; aiter returns no log-sum-exp."""
DECLINED = re.compile(
    r"/flash_attention|/flashinfer|/aiter|attention/triton/\w+-over-(bfloat16|float16|float8_\w+)$"
    r"|packed/fp8-blocks-(?!128)|scheme/int8-group-|scheme/int4-group-8-"
)
"""Packages that are not installed; caches in another float than the activations; scales that too few inputs share."""


def cases() -> Iterator[Any]:
    for name, path in PLATFORMS.items():
        for case in conformance_cases(path):
            if case.id.startswith(BY_TILES) or (name == "cuda" and not case.id.startswith(ALONE)):
                daily = name == "cuda" and case.id.startswith(DAILY)
                yield pytest.param(name, case, id=f"{name}-{case.id}", marks=() if daily else pytest.mark.nightly)


def expected(name: str, case: str) -> str:
    if case.startswith(ABSENT):
        return "n/a"
    lacks_fp8 = name != "cuda" and "-over-fp8" in case  # gfx942's own kind is not that of a cache
    return "falls back" if lacks_fp8 or DECLINED.search(case) else "passed"


@pytest.mark.parametrize(("name", "case"), list(cases()))
def test_it_conforms(chip: object, name: str, case: Case) -> None:
    assert case.run().status == expected(name, case.id)


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu"])
def test_the_page_says_what_it_answers(chip: object, name: str) -> None:
    answers_as_the_page_says(name)
