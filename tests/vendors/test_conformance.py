"""The kit at silver, over the emulated device and the stand-in: what is handed to the vendor's ops means what their
documentation says, or has the arguments of their published schemas."""

from __future__ import annotations

import re

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.platforms import emulated
from tests.platforms.on_page import answers_as_the_page_says
from tests.vendors.chosen import PLATFORM

pytestmark = pytest.mark.compiler

CASES = conformance_cases(PLATFORM.conformance_path, "silver")
ABSENT, DECLINED = re.compile(PLATFORM.absent), re.compile(PLATFORM.declined)


def conforms(case: Case) -> None:
    emulated.conforms(case, absent=ABSENT, declined=DECLINED, not_taken=PLATFORM.not_taken)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_conforms(case: Case) -> None:
    conforms(case)


def test_the_page_says_what_it_answers() -> None:
    answers_as_the_page_says(PLATFORM.name)
