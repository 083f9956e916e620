"""The kernels of norms compute what their ops' references do, on the host, by Triton's interpreter."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Case, conformance_cases
from tests.platforms.interpreted import Interpreted

PLATFORM = f"{Interpreted.__module__}:{Interpreted.__name__}"
OPS = tuple(f"op/{name}/" for name in ("rms_norm", "layer_norm", "add_norm", "add_layer_norm"))


@pytest.mark.parametrize("case", [case for case in conformance_cases(PLATFORM) if case.id.startswith(OPS)], ids=str)
def test_it_conforms(case: Case) -> None:
    case.run()
