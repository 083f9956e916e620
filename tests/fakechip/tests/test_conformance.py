"""What the conformance kit tries, one by one: `pytest -k linear --pdb` stops where a kernel went wrong."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases

PLATFORM = "tessera_fakechip.platform:FakechipPlatform"
STATIC = "tessera_fakechip.stages:Static"


@pytest.mark.parametrize("case", conformance_cases(PLATFORM, "silver"), ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("case", conformance_cases(STATIC, "silver", 2), ids=str)
def test_its_static_shapes_conform(case: Case) -> None:
    case.run()
