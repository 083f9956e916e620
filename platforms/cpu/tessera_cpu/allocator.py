"""Configures how this process allocates memory: in huge pages, and keeping what a step frees for the next step. Does
nothing with a C library other than glibc."""

from __future__ import annotations

import ctypes
import mmap

# Names and numbers from glibc's malloc.h; see mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1


def settle_memory(room: int) -> None:
    """Call it in a process of our own, before it allocates much. room: bytes that the process may come to use."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        _keep_what_is_freed(library)
        _ask_for_large_pages(library, room)


def _keep_what_is_freed(library: ctypes.CDLL) -> None:
    """Otherwise each large activation is mapped again and zeroed page by page, in every layer of every step."""
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, 0)


def _ask_for_large_pages(library: ctypes.CDLL, room: int) -> None:
    """A decode step reads every weight once; with pages of 4 KiB, it would also wait for page tables. The heap is grown
    by `room`, marked for huge pages and freed again: it stays grown, and a page is only allocated when it is written
    to."""
    library.malloc.restype = ctypes.c_void_p
    start = library.malloc(ctypes.c_size_t(room))
    if start is None:  # the system does not overcommit
        return
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(start + room - first), mmap.MADV_HUGEPAGE)
    library.free(ctypes.c_void_p(start))
