"""Tessera's platform for TPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "tpu",
            probe="tessera_tpu.probe:probe",
            platform="tessera_tpu.platform:TpuPlatform",
        )
    ]
