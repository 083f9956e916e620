"""Tessera's platform for IBM Spyre. Experimental: it has run on an emulated device alone."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "spyre",
            probe="tessera_spyre.probe:probe",
            platform="tessera_spyre.platform:SpyrePlatform",
        )
    ]
