"""Tessera on fakechip. What torch and the chip need is imported when one of its platforms is chosen, not before."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl

STAGES = {
    "fakechip": ("native", "platform:FakechipPlatform"),
    "fakechip-static": ("static", "stages:Static"),
    "fakechip-bronze": ("bronze", "stages:Bronze"),
}


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            name,
            probe=f"tessera_fakechip.probe:{probe}",
            platform=f"tessera_fakechip.{platform}",
        )
        for name, (probe, platform) in STAGES.items()
    ]
