"""Every case of the kit, one by one: `pytest -k linear --pdb` stops where a kernel went wrong."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases


@pytest.mark.parametrize("case", conformance_cases("tessera_fakechip.platform:Fakechip"), ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()
