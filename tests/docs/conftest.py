"""Real distributions of plugins, as tests/unit has them."""

from __future__ import annotations

from tests.unit.conftest import Site, libraries, site, wheel

__all__ = ["Site", "libraries", "site", "wheel"]
