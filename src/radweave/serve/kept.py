"""What was decoded once, on disk: bounded in bytes, the longest unused goes first, a folder for each study.

An entry is two files: the bytes, gzipped, and a description that is written last, so that what has one is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from radweave.base.storage import remove_leftovers, write_aside, write_text

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
