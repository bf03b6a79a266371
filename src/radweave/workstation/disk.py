"""What was decoded once, on disk: bounded in bytes, the longest unused goes first, a folder for each study.

An entry is two files: the bytes, gzipped, and a description that is written last, so that what has one is whole.
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
    """So many wait already that one more would only wait too long."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A description, and where each part lies."""

    about: dict[str, Any]
    parts: dict[str, Path]


class Places:
    """So many at once, a few more who wait, and nobody else: what takes memory and seconds for each who asks."""

    def __init__(self, at_once: int, *, most_waiting: int = 8, wait_s: float = 60.0) -> None:
        self._doing, self._wait_s = threading.BoundedSemaphore(at_once), wait_s
        self._places = threading.BoundedSemaphore(at_once + most_waiting)

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place.

        Raises:
            BusyError: if too many wait, or it took too long.
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


class Kept:
    """The entries below ``folder``, ``most_bytes`` together. Safe to use from threads; one decodes at a time."""

    def __init__(self, folder: Path, most_bytes: int, *, most_waiting: int = 8, wait_s: float = 60.0) -> None:
        self._folder, self._most = folder, most_bytes
        self._places = Places(1, most_waiting=most_waiting - 1, wait_s=wait_s)

    def get(self, study: str, key: str, make: Make) -> Entry:
        """The entry, made where it is not there.

        Raises:
            BusyError: if too many wait.
            InputError: what ``make`` raises. Nothing is kept then.
        """
        found = self._find(study, key)
        if found is not None:
            return found
        with self._places.one():
            return self._find(study, key) or self._made(study, key, make)

    def _find(self, study: str, key: str) -> Entry | None:
        place = self._folder / study / f"{key}{_ABOUT}"
        try:
            about = json.loads(place.read_text(encoding="utf-8"))
            parts = {name: self._folder / study / f"{key}-{name}{_BYTES}" for name in about["parts"]}
            for path in (*parts.values(), place):
                os.utime(path)
        except (OSError, ValueError, KeyError):  # not there, or half removed
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
        """Remove the longest unused until the rest fits; what was made just now stays, however large."""
        found = []
        for about in self._folder.glob(f"*/*{_ABOUT}"):
            with contextlib.suppress(OSError):
                files = [about, *about.parent.glob(f"{about.stem}-*{_BYTES}")]
                found.append((about.stat().st_mtime_ns, sum(file.stat().st_size for file in files), files))
        found.sort(key=lambda row: row[0], reverse=True)
        total = 0
        for _, size, files in found:
            total += size
            if total > self._most and newest not in files:
                for file in files:
                    file.unlink(missing_ok=True)

    def forget(self, study: str) -> None:
        """Remove all of a study."""
        shutil.rmtree(self._folder / study, ignore_errors=True)

    def sweep(self, studies: set[str]) -> None:
        """At the start: remove what was being written, and what belongs to none of ``studies``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in self._folder.iterdir():
            if folder.name in studies:
                remove_leftovers(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)


# Room on the disk: what the workstation's folder holds, the most that it may, and what of the disk stays free.
#
# A draft that is edited and a report that is signed need room too. So whatever brings files is refused before the disk
# is full, and while there is less than ``free_bytes`` nothing is taken in.


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
