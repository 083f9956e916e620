"""Plugins: found through entry points, loaded one at a time, checked against core's API levels, probed and selected."""

from __future__ import annotations

from tessera.plugins.contract import load_platform
from tessera.plugins.discovery import Discovered, discover
from tessera.plugins.extensions import load_registry, weight_format
from tessera.plugins.loading import Plugin, Plugins, load_plugins
from tessera.plugins.paths import load_path
from tessera.plugins.registry import Registry, Table
from tessera.plugins.selection import Selected, probe, select

__all__ = [
    "Discovered",
    "Plugin",
    "Plugins",
    "Registry",
    "Selected",
    "Table",
    "discover",
    "load_path",
    "load_platform",
    "load_plugins",
    "load_registry",
    "probe",
    "select",
    "weight_format",
]
