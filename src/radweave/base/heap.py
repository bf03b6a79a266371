"""Memory that one step or picture frees and the next asks for again."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGEST_BLOCK = 32 << 20
"""Bytes. The most that glibc takes from its heap; a larger block is always mapped and given back by itself."""
KEPT = 1 << 30
"""Bytes at the end of the heap that stay with the process when they are free."""


def keep_freed_pages(kept: int = KEPT) -> bool:
    """Keep pages that were freed, so that the next step does not fault them in again; False where libc cannot.

    glibc gives a block of some megabytes back to the system as soon as it is freed. A training step, or the reading of
    a picture, frees and asks for the same blocks each time, and each page is then cleared by the system once more. For
    the rest of the process up to ``kept`` bytes more than it needs may be resident. All threads share one heap from
    then on, since a thread's own heap would keep little. ``MALLOC_`` variables that the user set are overruled.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = {_M_MMAP_THRESHOLD: LARGEST_BLOCK, _M_TRIM_THRESHOLD: kept, _M_ARENA_MAX: 1}
    taken = [set_option(name, value) == 1 for name, value in options.items()]
    return all(taken)
