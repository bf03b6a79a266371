"""A folder that is looked at again and again: what is laid into it becomes a study.

A file or a folder is taken when it did not change between two looks, so that a copy that is still going on is not. What
is taken is copied; the folder itself is never written to. The same thing is taken once, over restarts too. What cannot
be read, or taken, holds up nothing else; a name that is not UTF-8 is shown with its
other signs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from radweave.base.errors import printable
from radweave.base.hashes import sha256_json
from radweave.serve.again import Again
from radweave.serve.events import say, say_failure
from radweave.serve.uploads import Incoming, from_path

INTERVAL_S = 2.0

Take = Callable[[Sequence[Incoming], str], bool]


class Watcher(Again):
    """A thread that gives what is new to ``take``, with a key that is the same after a restart."""

    def __init__(
        self, folder: Path, take: Take, count: Callable[[str], None] = lambda _: None, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._folder, self._take, self._count = folder, take, count
        self._seen: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        super().__init__("watch", pause_s=interval_s, failed="watch-failed")

    def look(self) -> int:
        """Take what is as it was at the last look; 0, for what is new must wait for the next."""
        there = {path.name: path for path in sorted(self._folder.iterdir()) if not path.name.startswith(".")}
        for known in (self._seen, self._done, self._failures):
            for name in known.keys() - there.keys():
                del known[name]
        for name, path in there.items():
            if self._stopping.is_set():
                break
            try:
                self._look_at(name, path)
            except Exception as error:  # it may go while it is read, or be of another user
                kind = type(error).__name__
                if self._failures.get(name) != kind:  # once, for it is tried at each look
                    self._failures[name] = kind
                    self._count("watched_failures")
                    say_failure("watched-failed", error)
        return 0

    def _look_at(self, name: str, path: Path) -> None:
        files = _files(path)
        key = sha256_json(
            [_written(name, printable), [[_written(str(file), printable), *_look(file)] for file in files]]
        )
        if self._done.get(name) == key or not files:
            return
        if self._seen.get(name) != key:
            self._seen[name] = key
            return
        places = [file.relative_to(self._folder).as_posix() for file in files]
        if self._take([from_path(file, _written(place)) for file, place in zip(files, places, strict=True)], key):
            self._done[name] = key
            renamed = sum(_written(place) != place for place in places)
            if renamed:
                self._count("watched_names_not_utf8")
                say("watched-names-not-utf8", count=renamed)


def _replaced(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _written(name: str, write: Callable[[str], str] = _replaced) -> str:
    """A name as text, by ``write`` where its bytes are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return write(name)
    return name


def _files(path: Path) -> list[Path]:
    """A file, or the files in a folder; links are not followed."""
    if path.is_symlink():
        return []
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _look(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
