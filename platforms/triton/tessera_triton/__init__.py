"""Triton kernels that platform packages share. It registers no platform: a package for a chip says what it knows of
its device, in a subclass of `tessera_triton.platform.TritonPlatform`.

Each file of kernels holds one group of ops: the Triton functions, the classes that bind them, and nothing else.
Kernels are looked up on first use, so that probes can import this package, and platforms run on reference ops, where
Triton is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera_triton.facts import TARGETS, DeviceFacts, Launcher, has_compiler

if TYPE_CHECKING:
    from tessera_triton.attention import TritonAttention
    from tessera_triton.encoder import TritonEncoderAttention
    from tessera_triton.latent import TritonLatentAttention
    from tessera_triton.library import kernels
    from tessera_triton.mixers import state_mixers
    from tessera_triton.sparse_latent import TritonSparseLatentAttention

__all__ = [
    "TARGETS", "DeviceFacts", "Launcher", "TritonAttention", "TritonEncoderAttention", "TritonLatentAttention",
    "TritonSparseLatentAttention", "has_compiler", "kernels", "state_mixers",
]  # fmt: skip

_WITH_KERNELS = {
    "TritonAttention": "tessera_triton.attention",
    "TritonEncoderAttention": "tessera_triton.encoder",
    "TritonLatentAttention": "tessera_triton.latent",
    "TritonSparseLatentAttention": "tessera_triton.sparse_latent",
    "kernels": "tessera_triton.library",
    "state_mixers": "tessera_triton.mixers",
}


def __getattr__(name: str) -> Any:
    """Looks up what needs Triton."""
    if name in _WITH_KERNELS:
        return getattr(import_module(_WITH_KERNELS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
