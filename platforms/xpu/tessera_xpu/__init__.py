"""Tessera's platform for Intel GPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl
from tessera_triton.environment import VARIABLES


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "xpu",
            probe="tessera_xpu.probe:probe",
            platform="tessera_xpu.platform:XpuPlatform",
            variables=VARIABLES,
        )
    ]
