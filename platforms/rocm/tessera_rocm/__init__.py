"""Tessera's platform for AMD GPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl
from tessera_triton.environment import VARIABLES


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "rocm",
            probe="tessera_rocm.probe:probe",
            platform="tessera_rocm.platform:RocmPlatform",
            variables=VARIABLES,
        )
    ]
