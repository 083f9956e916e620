"""What the conformance kit tries, on JAX's CPU."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases

PLATFORM = "tessera_tpu.platform:HostPlatform"


@pytest.mark.parametrize("case", conformance_cases(PLATFORM, "silver"), ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()
