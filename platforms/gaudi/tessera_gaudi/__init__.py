"""Tessera's platform for Intel Gaudi accelerators."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "gaudi",
            probe="tessera_gaudi.probe:probe",
            platform="tessera_gaudi.platform:GaudiPlatform",
        )
    ]
