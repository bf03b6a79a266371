"""Processors and memory of this process: the models' device, usable cores, the heap."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING

from radweave.core.errors import InputError

if TYPE_CHECKING:  # imports and checks of data sets need no torch
    import torch

VARIABLE = "RADWEAVE_DEVICE"
"""Environment variable with the device's name, inherited by child processes."""


def use_device(name: str) -> None:
    """Set the device of all later models: cpu, cuda, cuda:1, mps.

    Raises:
        InputError: if the device does not exist.
    """
    parse_device(name)
    os.environ[VARIABLE] = name


def default_device() -> torch.device:
    """The device of ``use_device`` or the environment; by default CUDA if available, else the CPU.

    Raises:
        InputError: if the environment names a device that does not exist.
    """
    import torch

    requested = os.environ.get(VARIABLE)
    return parse_device(requested) if requested else torch.device("cuda" if torch.cuda.is_available() else "cpu")


def parse_device(name: str, *, field: str = "--device") -> torch.device:
    """The device of this name.

    Raises:
        InputError: if it does not exist, naming ``field``.
    """
    import torch

    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (backend := getattr(torch, other := torch._C._get_privateuse1_backend_name(), None)) is not None:
        counts[other] = int(backend.device_count())  # the one name that torch keeps free for other packages
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.index or 0) >= counts.get(device.type, 0):
        known = [
            kind if count == 1 else f"{kind}, {kind}:0 to {kind}:{count - 1}" for kind, count in counts.items() if count
        ]
        raise InputError("there is no such device here", field=field, got=name, expected=" or ".join(known))
    return device


def usable_cores() -> int:
    """Number of logical cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGEST_BLOCK = 32 << 20
"""Bytes. Largest block that glibc takes from its heap; larger blocks are always mapped and returned."""
MAX_FREE_BYTES = 1 << 30
"""Bytes of free heap that stay with the process."""


def keep_freed_pages(max_free: int = MAX_FREE_BYTES) -> bool:
    """Keep freed pages in the process, which saves page faults in the next step; False where libc has no ``mallopt``.

    glibc returns blocks of some megabytes to the system as soon as they are freed. A training step or an image reader
    frees and allocates the same blocks each time, and the system clears each page again. Up to ``max_free`` unused
    bytes stay resident. All threads share one heap, since a heap per thread would keep little. The user's ``MALLOC_``
    variables are overruled.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    options = {_M_MMAP_THRESHOLD: LARGEST_BLOCK, _M_TRIM_THRESHOLD: max_free, _M_ARENA_MAX: 1}
    results = [set_option(name, value) for name, value in options.items()]
    return all(result == 1 for result in results)
