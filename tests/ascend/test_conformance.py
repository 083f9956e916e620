"""The kit at silver, over the emulated device and the stand-in, to which each call's arguments are those of the
published wheel."""

from __future__ import annotations

import re

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.ascend.conftest import PLATFORM
from tests.platforms.emulated import conforms
from tests.platforms.on_page import answers_as_the_page_says

pytestmark = pytest.mark.compiler

ABSENT = re.compile(r"^(device/manifest|collectives|overlap/workers|batch-invariant/|scheme$)|/far-apart|/lse-")
"""What a platform without a manifest has on one device of 256 MiB, and what it does not claim."""
DECLINED = re.compile(
    r"window|softcap|sinks|-over-|^(attention|fused|cache)/.*float32|^(packed|scheme)/|^op/linear/(?!sizes$)|^reads/linear$"
)
"""Attention that the fused op does not compute, and products whose sizes are no multiples of the tiles, which most of
the kit's are not."""
NOT_TAKEN = ("no kernel", "no gate of gelu", "no gate of gelu_tanh", "no products in float32")


@pytest.mark.parametrize("case", conformance_cases(PLATFORM, "silver"), ids=str)
def test_it_conforms(case: Case) -> None:
    conforms(case, absent=ABSENT, declined=DECLINED, not_taken=NOT_TAKEN)


def test_the_page_says_what_it_answers() -> None:
    answers_as_the_page_says("ascend")
