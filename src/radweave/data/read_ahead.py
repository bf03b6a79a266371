"""Bring the images of the next studies into memory, in the order in which they lie on the disk.

What is read goes nowhere: the system keeps it, and the map of the cache finds it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

import numpy as np

CHUNK_BYTES: Final = 4 << 20
GAP_ROWS: Final = 8
"""Rows between two that are wanted which are read too: a disk is there sooner by reading than by seeking."""


class Placed(Protocol):
    """Something whose images are the ``rows`` of ``source``."""

    @property
    def source(self) -> Any: ...

    @property
    def rows(self) -> tuple[int, ...]: ...


@contextmanager
def reading_ahead(
    chosen: Callable[[int], Iterable[Placed]], steps: range, together: int
) -> Iterator[Callable[[int], None]]:
    """Give what is told of each step: while ``together`` steps are used, the images of as many after them are read.

    Args:
        chosen: what a step uses.
        steps: all that are left of the epoch.
    """
    pool, read_to = ThreadPoolExecutor(max_workers=1), -1

    def at(step: int) -> None:
        nonlocal read_to
        for number in range(max(read_to + 1, step // together), step // together + 2):
            some = (part for part in range(number * together, (number + 1) * together) if part in steps and part > step)
            pool.submit(read, [study for part in some for study in chosen(part)])
            read_to = number

    try:
        yield at
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read(studies: Iterable[Placed]) -> int:
    """Read the radiographs of these studies from their cache, each file from front to back; how many bytes.

    Scans have a file each, and the system reads those ahead by itself.
    """
    wanted: dict[int, tuple[np.memmap[Any, Any], set[int]]] = {}
    for study in studies:
        if isinstance(study.source, np.memmap):
            wanted.setdefault(id(study.source), (study.source, set()))[1].update(study.rows)
    return sum(_read(source, sorted(rows)) for source, rows in wanted.values())


def _read(source: np.memmap[Any, Any], rows: Sequence[int]) -> int:
    total, buffer = 0, memoryview(bytearray(CHUNK_BYTES))
    size = source.strides[0]
    # What cannot be read here is found out by who needs it.
    with suppress(OSError), open(str(source.filename), "rb", buffering=0) as file:
        for first, last in runs(rows):
            file.seek(source.offset + first * size)
            left = (last + 1 - first) * size
            while left > 0 and (count := file.readinto(buffer[: min(left, CHUNK_BYTES)])):
                left, total = left - count, total + count
    return total


def runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and last row of each stretch of ascending ``rows`` without a wide gap."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row - found[-1][1] <= GAP_ROWS:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
    return found
