"""Tessera's platform for Intel GPUs."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "xpu",
            probe="tessera_xpu.probe:probe",
            platform="tessera_xpu.platform:XpuPlatform",
        )
    ]
