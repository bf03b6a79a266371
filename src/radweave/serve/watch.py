"""A folder that is looked at again and again: what is laid into it becomes a study.

A file or a folder is taken when it did not change between two looks, so that a copy that is still going on is not. What
is taken is copied; the folder itself is never written to. The same thing is taken once, over restarts too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from radweave.base.hashes import sha256_json
from radweave.serve.again import Again
from radweave.serve.uploads import Incoming, from_path

INTERVAL_S = 2.0

Take = Callable[[Sequence[Incoming], str], bool]


class Watcher(Again):
    """A thread that gives what is new to ``take``, with a key that is the same after a restart."""

    def __init__(self, folder: Path, take: Take, *, interval_s: float = INTERVAL_S) -> None:
        self._folder, self._take = folder, take
        self._seen: dict[str, str] = {}
        self._done: dict[str, str] = {}
        super().__init__("watch", pause_s=interval_s, failed="watch-failed")

    def look(self) -> int:
        """Take what is as it was at the last look; 0, for what is new must wait for the next."""
        there = {path.name: path for path in sorted(self._folder.iterdir()) if not path.name.startswith(".")}
        for name in self._seen.keys() - there.keys():
            del self._seen[name]
            self._done.pop(name, None)
        for name, path in there.items():
            files = _files(path)
            key = sha256_json([name, [[str(file), *_look(file)] for file in files]])
            if self._done.get(name) == key or not files:
                continue
            if self._seen.get(name) != key:
                self._seen[name] = key
                continue
            incoming = [from_path(file, file.relative_to(self._folder).as_posix()) for file in files]
            if self._take(incoming, key):
                self._done[name] = key
        return 0


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
