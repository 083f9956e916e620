"""Opening the platform that was chosen, in the process that executes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tessera.errors import PlatformError
from tessera.platform import Platform
from tessera.plugins.paths import load_path

REMOVED_MEMBERS: Mapping[str, str] = MappingProxyType({})
"""Members of Platform that no longer exist, each with what replaces it."""


def load_platform(path: str) -> Platform:
    """The platform that the class (or factory) at a dotted path makes without arguments. Raises PlatformError for what
    is no Platform, lacks a method that it must have, or defines a member that core no longer knows."""
    make = load_path(path)
    lacking = sorted(getattr(make, "__abstractmethods__", ()))
    if lacking:
        raise PlatformError(f"{path} lacks {', '.join(lacking)}, which every platform must have.")
    platform = make()
    if not isinstance(platform, Platform):
        raise PlatformError(f"{path} makes no tessera.platform.Platform.")
    for name, replacement in REMOVED_MEMBERS.items():
        if hasattr(platform, name):
            raise PlatformError(f"{path} defines {name}, which no longer exists; {replacement} replaced it.")
    return platform
