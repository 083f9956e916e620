"""The kit at silver, over the emulated device and the stand-in: what is handed to the vendor's ops means what their
documentation says."""

from __future__ import annotations

import re

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.gaudi.conftest import PLATFORM
from tests.platforms.emulated import conforms
from tests.platforms.on_page import answers_as_the_page_says

pytestmark = pytest.mark.compiler

ABSENT = re.compile(r"^(device/manifest|collectives|overlap/workers|batch-invariant/)|/far-apart|/lse-")
"""What a platform without a manifest has on one device of 1 GiB, and what it does not claim."""
DECLINED = re.compile(r"softcap|sinks|-over-|^reads/linear$|^scheme/|^packed/(?!fp8(-static)?-bfloat16$)")
"""Attention that FusedSDPA does not compute, and weights in other formats than fp8 with a scale for each output: the
kit's own of this kind have activations that are not in fp8."""
NOT_TAKEN = ("no kernel", "no offset to the weight", "float16 is not among its dtypes", "torch's own product")


@pytest.mark.parametrize("case", conformance_cases(PLATFORM, "silver"), ids=str)
def test_it_conforms(case: Case) -> None:
    conforms(case, absent=ABSENT, declined=DECLINED, not_taken=NOT_TAKEN)


@pytest.mark.parametrize(
    "case", [case for case in conformance_cases(PLATFORM, "silver") if case.id.startswith("packed/fp8-")], ids=str
)
def test_fp8_of_gaudi_2_conforms(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HABANA_STAND_IN", "GAUDI2")
    test_it_conforms(case)


def test_the_page_says_what_it_answers() -> None:
    answers_as_the_page_says("gaudi")
