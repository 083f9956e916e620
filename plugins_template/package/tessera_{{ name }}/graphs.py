"""Captured launches."""

from __future__ import annotations

from tessera.platform import Device, GraphRunner


def graphs(device: Device) -> GraphRunner | None:
    """None: every launch runs eagerly."""
    return None
