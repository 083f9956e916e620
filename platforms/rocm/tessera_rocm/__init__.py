"""Tessera's platform for AMD GPUs."""

from __future__ import annotations

from tessera.platform import API_LEVELS, Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "rocm",
            probe="tessera_rocm.probe:probe",
            platform="tessera_rocm.platform:RocmPlatform",
            levels=dict.fromkeys(API_LEVELS, 0),
        )
    ]
