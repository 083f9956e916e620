"""The bundled demo model's files."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder that holds tessera-demo, laid out like any local model."""
    return Path(__file__).parent
