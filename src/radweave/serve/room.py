"""Room on the disk: what the workstation's folder holds, the most that it may, and what of the disk stays free.

A draft that is edited and a report that is signed need room too. So whatever brings files is refused before the disk
is full, and while there is less than ``free_bytes`` nothing is taken in.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from radweave.serve.settings import Limits

_LOOK_S: Final = 30.0
"""How long a count of the folder holds."""
_SHARE: Final = 20
"""A count that took a second is not repeated for so many."""
Take = Callable[[int], None]


class NoRoomError(Exception):
    """The workstation holds as much as it may, or the disk is nearly full."""


class Room:
    """Counts the bytes of a folder; safe to use from threads."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._most, self._free = folder, limits.state_bytes, limits.free_bytes
        self._lock = threading.Lock()
        self._used, self._held, self._counted, self._took = 0, 0, float("-inf"), 0.0

    def figures(self) -> dict[str, int]:
        """What is used, the most that may be (where there is a limit), and what is free on the disk, in bytes."""
        with self._lock:
            self._count(_LOOK_S)
            found = {"storage_bytes": self._used, "storage_free_bytes": self._disk()}
        return found if self._most is None else {**found, "storage_limit_bytes": self._most}

    def refuse(self, size: int, *, is_counted: bool = True) -> None:
        """Refuse so many bytes more.

        Raises:
            NoRoomError: if they do not fit.
        """
        with self._lock:
            self._refuse(size, is_counted=is_counted)

    @contextmanager
    def hold(self, *, is_counted: bool = True) -> Iterator[Take]:
        """Hold room for what the block takes piece by piece; ``is_counted`` is off for what lies in the folder already.

        Raises:
            NoRoomError: from the piece that does not fit.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                self._refuse(size, is_counted=is_counted)
                self._held += size
                taken += size

        try:
            yield take
        finally:
            with self._lock:
                self._held -= taken
                self._used += taken

    @contextmanager
    def of_device(self) -> Iterator[Take]:
        """As ``hold``, for code that knows a full disk only."""
        try:
            with self.hold() as take:
                yield take
        except NoRoomError as error:
            raise OSError(errno.ENOSPC, "no room") from error

    def _refuse(self, size: int, *, is_counted: bool) -> None:
        if self._disk() - self._held - size < self._free:
            raise NoRoomError
        if not is_counted or self._most is None:
            return
        self._count(_LOOK_S)
        if self._used + self._held + size > self._most:
            self._count(1.0)  # something may have been removed since
            if self._used + self._held + size > self._most:
                raise NoRoomError

    def _disk(self) -> int:
        return shutil.disk_usage(self._folder).free

    def _count(self, age_s: float) -> None:
        begun = time.monotonic()
        if begun - self._counted < max(age_s, _SHARE * self._took):
            return
        self._used = _size(self._folder)
        self._counted, self._took = time.monotonic(), time.monotonic() - begun


def _size(folder: Path) -> int:
    """The bytes of all files below; what is removed meanwhile counts nothing."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total
