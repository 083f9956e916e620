"""How this process gets memory: in large pages, and what a step frees stays with it for the next step. Nothing of it is
done where the C library is not GNU's."""

from __future__ import annotations

import ctypes
import mmap

# Names and numbers of malloc.h of the GNU C library; its mallopt(3) says what they do.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1


def settle_memory(room: int) -> None:
    """For a process of our own, before it allocates much. room: bytes that it may come to use."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        _keep_what_is_freed(library)
        _ask_for_large_pages(library, room)


def _keep_what_is_freed(library: ctypes.CDLL) -> None:
    """Otherwise each large activation is mapped anew and zeroed page by page, in every layer of every step."""
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_MMAP_MAX, 0)


def _ask_for_large_pages(library: ctypes.CDLL, room: int) -> None:
    """A decode step reads every weight once; in pages of 4 KiB it waits for the page tables too. The heap is grown by
    the whole room, advised and freed again: it stays grown, and a page is taken only when something is written to
    it."""
    library.malloc.restype = ctypes.c_void_p
    start = library.malloc(ctypes.c_size_t(room))
    if start is None:  # the system promises no more than it has
        return
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    library.madvise(ctypes.c_void_p(first), ctypes.c_size_t(start + room - first), mmap.MADV_HUGEPAGE)
    library.free(ctypes.c_void_p(start))
