"""How this process gets memory: what a step frees stays with it for the next step."""

from __future__ import annotations

import ctypes

# Names and numbers of malloc.h of the GNU C library; its mallopt(3) says what they do.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1


def keep_freed_memory() -> None:
    """Without it, each large activation is mapped anew and zeroed page by page, in every layer of every step. Does
    nothing on another C library."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_MMAP_MAX, 0)
