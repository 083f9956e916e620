"""`tessera chat` and `tessera complete`."""

from __future__ import annotations
