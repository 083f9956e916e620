"""Tessera's platform for general-purpose processors, with native kernels and torch's."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl
from tessera_cpu.environment import VARIABLES


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "cpu",
            probe="tessera_cpu.probe:probe",
            platform="tessera_cpu.platform:CpuPlatform",
            variables=VARIABLES,
        )
    ]
