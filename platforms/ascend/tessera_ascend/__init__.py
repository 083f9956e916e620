"""Tessera's platform for Huawei Ascend NPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "ascend",
            probe="tessera_ascend.probe:probe",
            platform="tessera_ascend.platform:AscendPlatform",
        )
    ]
