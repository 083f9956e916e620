"""The environment variables that this library reads; platform packages that use it declare them in their manifests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PROVIDERS = "TESSERA_PROVIDERS"

VARIABLES: Mapping[str, str] = MappingProxyType(
    {PROVIDERS: "names of the kernel packages to use, separated by commas, or none (default: all that are installed)"}
)
"""What each does."""
