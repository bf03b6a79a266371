"""Memory that a step frees and the next step asks for again."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_BLOCK = 32 << 20
"""Bytes. The most that glibc takes from its heap; a larger block is always mapped and given back by itself."""
KEPT = 1 << 30
"""Bytes at the end of the heap that stay with the process when they are free."""


def keep_freed_pages() -> bool:
    """Keep pages that were freed, so that the next step does not fault them in again; False where libc cannot.

    glibc gives a block of some megabytes back to the system as soon as it is freed. A training step frees and asks for
    the same blocks each time, and each page is then cleared by the system once more. For the rest of the process up to
    ``KEPT`` bytes more than it needs may be resident. ``MALLOC_`` variables that the user set are overruled.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    kept = set_option(_M_MMAP_THRESHOLD, LARGEST_BLOCK), set_option(_M_TRIM_THRESHOLD, KEPT)
    return kept == (1, 1)
