"""The kit at silver, over the emulated device and the stand-in. Launches are not compiled: test_engine.py does that."""

from __future__ import annotations

import re

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.platforms.emulated import conforms
from tests.platforms.on_page import answers_as_the_page_says

PLATFORM = "tests.torch_tpu.eager:Eager"
pytestmark = pytest.mark.compiler

ABSENT = re.compile(
    r"^(device/(manifest|peak|synchronize)|collectives|overlap|batch-invariant/|reads$|scheme$)|/far-apart|/lse-"
)
"""What a platform without a manifest has on one device of 256 MiB, and what it does not claim: its host
is never ahead."""
DECLINED = re.compile(r"softcap|sinks|-over-|^op/|^reads/linear$|^packed/")
"""Attention that is not computed under a mask alone, and ops, of which the compiler gets core's definitions."""
NOT_TAKEN = ("no kernel",)


@pytest.mark.parametrize("case", conformance_cases(PLATFORM, "silver"), ids=str)
def test_it_conforms(case: Case) -> None:
    conforms(case, absent=ABSENT, declined=DECLINED, not_taken=NOT_TAKEN)


def test_the_page_says_what_it_answers() -> None:
    answers_as_the_page_says("torch-tpu")
