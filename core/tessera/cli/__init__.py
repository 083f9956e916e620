"""The command line; commands.py lists the commands."""

from __future__ import annotations

from tessera.cli.program import main

__all__ = ["main"]
