"""Triton kernels that platform packages share. It registers no platform: a package for a chip calls `kernels(facts)`
with what it knows of its device, and adds the result to its op table.

Each file holds one group of ops: the Triton functions, the classes that bind them, and nothing else.
"""

from __future__ import annotations

from tessera_triton.attention import TritonAttention
from tessera_triton.facts import TARGETS, DeviceFacts, Launcher
from tessera_triton.library import kernels

__all__ = ["TARGETS", "DeviceFacts", "Launcher", "TritonAttention", "kernels"]
