"""The environment variables that this library reads; platform packages that use it declare them in their manifests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PROVIDERS = "TESSERA_PROVIDERS"
COPIES = "TESSERA_TRITON_COPIES"

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        PROVIDERS: "kernel packages to use, by name, separated by commas, or none (default: all that are installed)",
        COPIES: "whether hardware copies keys for prompts: off, plain, or by specialized warps (default: plain)",
    }
)
"""What each does."""
