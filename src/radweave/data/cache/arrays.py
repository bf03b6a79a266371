"""Arrays on disk: written in one go, checked when they are opened.

A stamp shows without reading that a file may have changed; a checksum proves it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from radweave.core.devices import keep_freed_pages, usable_cores

TRIES: Final = 3
"""Attempts to read an image that changes meanwhile."""


def stamp(path: Path) -> str:
    """Size and times of a file, or of all files of a folder, as 16 digits; empty where there is none.

    The time of the last change of its record counts too: tools that copy a file may set the time of its bytes back.
    """
    try:
        records = [(path.name, path.stat())]
        if S_ISDIR(records[0][1].st_mode):
            records = [(file.name, file.stat()) for file in sorted(path.iterdir())]
    except (OSError, ValueError):  # missing, or a name that no file can have
        return ""
    facts = [(name, record.st_size, record.st_mtime_ns, record.st_ctime_ns) for name, record in records]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def checksum(row: NDArray[Any]) -> str:
    """First 16 digits of the SHA-256 of a row's bytes."""
    return hashlib.sha256(np.ascontiguousarray(row).data).hexdigest()[:16]


@contextmanager
def write_rows(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write an array of ``shape`` to a ``.npy`` file by appending rows; missing ones are 0.

    Written to and not mapped: a full disk is then an error, where a map would end the process.

    Raises:
        OSError: if it cannot be written.
    """
    kind = np.dtype(dtype)
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        end = file.tell() + kind.itemsize * int(np.prod(shape))

        def give(rows: NDArray[Any]) -> None:
            assert rows.dtype == kind
            assert rows.shape[1:] == shape[1:]
            file.write(np.ascontiguousarray(rows).data)

        yield give
        assert file.tell() <= end
        file.truncate(end)


def open_rows(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any] | None:
    """Map an array of exactly this type and shape, or return None. Nothing is unpickled."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    if not isinstance(array, np.memmap) or array.dtype != np.dtype(dtype) or array.shape != shape:
        return None
    return array


# Parallel work on images, one thread a core: the reading itself runs in separate processes.

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in the order of the items; a bounded number is computed ahead."""
    keep_freed_pages()
    cores = usable_cores()
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(max_workers=cores) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > 4 * cores:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            for _, result in waiting:
                result.cancel()


def one_by_one(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """``in_order`` without threads, for work that takes less than a hand-over."""
    return ((item, work(item)) for item in items)
