"""The environment variables that this package reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KERNELS = "TESSERA_CPU_KERNELS"

VARIABLES: Mapping[str, str] = MappingProxyType(
    {KERNELS: "the kernels of a processor: an instruction set, portable, or torch (default: the best that it has)"}
)
"""What each does."""
