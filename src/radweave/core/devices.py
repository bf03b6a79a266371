"""The device that models run on: the one that was asked for, or the first CUDA device, or the CPU."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from radweave.core.errors import InputError

VARIABLE = "RADWEAVE_DEVICE"
"""The environment variable that names it; processes that are started inherit it."""


def use_device(name: str) -> None:
    """Run models on ``name`` from here on: cpu, cuda, cuda:1, mps.

    Raises:
        InputError: if there is no such device.
    """
    parse_device(name)
    os.environ[VARIABLE] = name


def default_device() -> torch.device:
    """The device that was asked for, else a CUDA device where there is one, else the CPU.

    Raises:
        InputError: if the environment asks for one that is not here.
    """
    asked = os.environ.get(VARIABLE)
    return parse_device(asked) if asked else torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(name: str, *, field: str = "--device") -> torch.device:
    """The device of this name.

    Raises:
        InputError: if there is none here, naming ``field``.
    """
    here = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    here.update(_of_others())
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.index or 0) >= here.get(device.type, 0):
        known = [
            kind if count == 1 else f"{kind}, {kind}:0 to {kind}:{count - 1}" for kind, count in here.items() if count
        ]
        raise InputError("there is no such device here", field=field, got=name, expected=" or ".join(known))
    return device


def _of_others() -> dict[str, int]:
    """Devices of a backend that a package outside of torch has brought; it takes the one name that torch keeps free."""
    kind = torch._C._get_privateuse1_backend_name()
    brought = getattr(torch, kind, None)
    return {kind: int(brought.device_count())} if brought is not None else {}


# How many processors this process may use.


def usable_cores() -> int:
    """Logical cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Memory that one step or picture frees and the next asks for again.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGEST_BLOCK = 32 << 20
"""Bytes. The most that glibc takes from its heap; a larger block is always mapped and given back by itself."""
MAX_FREE_BYTES = 1 << 30
"""Bytes at the end of the heap that stay with the process when they are free."""


def keep_freed_pages(max_free: int = MAX_FREE_BYTES) -> bool:
    """Keep pages that were freed, so that the next step does not fault them in again; False where libc cannot.

    glibc gives a block of some megabytes back to the system as soon as it is freed. A training step, or the reading of
    a picture, frees and asks for the same blocks each time, and each page is then cleared by the system once more. For
    the rest of the process up to ``max_free`` bytes more than it needs may be resident. All threads share one heap from
    then on, since a thread's own heap would keep little. ``MALLOC_`` variables that the user set are overruled.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = {_M_MMAP_THRESHOLD: LARGEST_BLOCK, _M_TRIM_THRESHOLD: max_free, _M_ARENA_MAX: 1}
    taken = [set_option(name, value) == 1 for name, value in options.items()]
    return all(taken)
