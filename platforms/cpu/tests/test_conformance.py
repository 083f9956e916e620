"""What the kit tries: every op that the platform overrides, attention, the cache's layout, tiny models."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tessera_cpu.platform import CpuPlatform

PLATFORM = f"{CpuPlatform.__module__}:{CpuPlatform.__name__}"


@pytest.mark.parametrize("case", conformance_cases(PLATFORM), ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()
