"""What a platform's author tests with: the reference platform, the strict platform, and (to come) the conformance
kit."""

from __future__ import annotations

from tessera.testing.host_reads import HostReads
from tessera.testing.reference import ReferencePlatform
from tessera.testing.strict import SeparateStrictPlatform, StrictPlatform

__all__ = ["HostReads", "ReferencePlatform", "SeparateStrictPlatform", "StrictPlatform"]
