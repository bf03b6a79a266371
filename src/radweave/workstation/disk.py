"""Disk use: a cache of decoded images, concurrency limits, and bounds of the stored bytes.

A cache entry is gzipped files and a description, which is written last: an entry with a description is whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from radweave.core.storage import remove_leftovers, write_aside, write_text
from radweave.workstation.settings import Limits

_ABOUT = ".json"
_BYTES = ".gz"

Writer = Callable[[IO[bytes]], None]
Make = Callable[[], tuple[dict[str, Any], dict[str, Writer]]]


class BusyError(Exception):
    """Too many requests wait already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached description, and the path of each part."""

    about: dict[str, Any]
    parts: dict[str, Path]


class ConcurrencyLimit:
    """Limit of concurrent expensive operations, with a bounded number of waiting ones."""

    def __init__(self, at_once: int, *, most_waiting: int = 8, wait_s: float = 60.0) -> None:
        self._doing, self._wait_s = threading.BoundedSemaphore(at_once), wait_s
        self._places = threading.BoundedSemaphore(at_once + most_waiting)

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot.

        Raises:
            BusyError: if too many wait, or the wait is too long.
        """
        if not self._places.acquire(blocking=False):
            raise BusyError
        try:
            if not self._doing.acquire(timeout=self._wait_s):
                raise BusyError
            try:
                yield
            finally:
                self._doing.release()
        finally:
            self._places.release()


class ImageCache:
    """LRU cache below ``folder`` of at most ``most_bytes``. Thread-safe; one thread decodes at a time."""

    def __init__(self, folder: Path, most_bytes: int, *, most_waiting: int = 8, wait_s: float = 60.0) -> None:
        self._folder, self._most = folder, most_bytes
        self._places = ConcurrencyLimit(1, most_waiting=most_waiting - 1, wait_s=wait_s)

    def get(self, study: str, key: str, make: Make) -> Entry:
        """Get an entry, or make it.

        Raises:
            BusyError: if too many wait.
            InputError: from ``make``; nothing is cached then.
        """
        entry = self._find(study, key)
        if entry is not None:
            return entry
        with self._places.slot():
            return self._find(study, key) or self._made(study, key, make)

    def _find(self, study: str, key: str) -> Entry | None:
        place = self._folder / study / f"{key}{_ABOUT}"
        try:
            about = json.loads(place.read_text(encoding="utf-8"))
            parts = {name: self._folder / study / f"{key}-{name}{_BYTES}" for name in about["parts"]}
            for path in (*parts.values(), place):
                os.utime(path)
        except (OSError, ValueError, KeyError):  # absent, or half removed
            return None
        return Entry(about["about"], parts)

    def _made(self, study: str, key: str, make: Make) -> Entry:
        about, writers = make()
        folder = self._folder / study
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parts = {name: folder / f"{key}-{name}{_BYTES}" for name in writers}
        for name, path in parts.items():
            with write_aside(path) as aside, aside.open("wb") as file:
                writers[name](file)
        text = json.dumps({"about": about, "parts": sorted(parts)}, allow_nan=False)
        write_text(folder / f"{key}{_ABOUT}", text)
        self._shrink(folder / f"{key}{_ABOUT}")
        return Entry(about, parts)

    def _shrink(self, newest: Path) -> None:
        """Evict the least recently used entries; the newest stays, however large."""
        entries = []
        for about in self._folder.glob(f"*/*{_ABOUT}"):
            with contextlib.suppress(OSError):
                files = [about, *about.parent.glob(f"{about.stem}-*{_BYTES}")]
                entries.append((about.stat().st_mtime_ns, sum(file.stat().st_size for file in files), files))
        entries.sort(key=lambda row: row[0], reverse=True)
        total = 0
        for _, size, files in entries:
            total += size
            if total > self._most and newest not in files:
                for file in files:
                    file.unlink(missing_ok=True)

    def forget(self, study: str) -> None:
        """Remove all entries of a study."""
        shutil.rmtree(self._folder / study, ignore_errors=True)

    def sweep(self, studies: set[str]) -> None:
        """Remove partial files, and entries of studies not in ``studies``; called at the start."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in self._folder.iterdir():
            if folder.name in studies:
                remove_leftovers(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)


# Bounds of disk use. Edits and signatures need space too, so uploads are refused while less than ``free_bytes`` are
# free.

_LOOK_S: Final = 30.0
"""Age at which a count of the folder is repeated."""
_SHARE: Final = 20
"""A count is repeated after this many times its own duration at the earliest."""
Take = Callable[[int], None]


class NoRoomError(Exception):
    """The limit of stored bytes is reached, or the disk is nearly full."""


class DiskSpace:
    """Bytes used by a folder and free on its disk, with reservations. Thread-safe."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._most, self._free = folder, limits.state_bytes, limits.free_bytes
        self._lock = threading.Lock()
        self._used, self._reserved, self._counted, self._took = 0, 0, float("-inf"), 0.0

    def figures(self) -> dict[str, int]:
        """Bytes used, the limit (if any), and bytes free on the disk."""
        with self._lock:
            self._count(_LOOK_S)
            usage = {"storage_bytes": self._used, "storage_free_bytes": self._disk()}
        return usage if self._most is None else {**usage, "storage_limit_bytes": self._most}

    def refuse(self, size: int, *, is_counted: bool = True) -> None:
        """Refuse ``size`` more bytes if they do not fit.

        Raises:
            NoRoomError: if they do not fit.
        """
        with self._lock:
            self._refuse(size, is_counted=is_counted)

    @contextmanager
    def reserve(self, *, is_counted: bool = True) -> Iterator[Take]:
        """Reserve bytes piece by piece; ``is_counted`` is false for files that are in the folder already.

        Raises:
            NoRoomError: from the piece that does not fit.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                self._refuse(size, is_counted=is_counted)
                self._reserved += size
                taken += size

        try:
            yield take
        finally:
            with self._lock:
                self._reserved -= taken
                self._used += taken

    @contextmanager
    def reserve_or_oserror(self) -> Iterator[Take]:
        """Reserve bytes, raising OSError as a full disk does."""
        try:
            with self.reserve() as take:
                yield take
        except NoRoomError as error:
            raise OSError(errno.ENOSPC, "no room") from error

    def _refuse(self, size: int, *, is_counted: bool) -> None:
        if self._disk() - self._reserved - size < self._free:
            raise NoRoomError
        if not is_counted or self._most is None:
            return
        self._count(_LOOK_S)
        if self._used + self._reserved + size > self._most:
            self._count(1.0)  # something may have been removed since
            if self._used + self._reserved + size > self._most:
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
    """Bytes of all files below; files removed meanwhile count nothing."""
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
