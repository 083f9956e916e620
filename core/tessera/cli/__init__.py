"""The command line: `tessera serve`, `tessera platforms`, `tessera doctor`."""

from __future__ import annotations

from tessera.cli.program import main

__all__ = ["main"]
