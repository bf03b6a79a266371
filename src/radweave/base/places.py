"""Where may be written: what stands in an output's place, and what is never replaced."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from radweave.base.errors import InputError


class Kind(Protocol):
    """A kind of output, see ``radweave.base.replacing``."""

    def refuse_other(self, path: Path) -> None: ...


def refuse_existing(path: Path, *, overwrite: bool, ours: Kind | None = None) -> None:
    """Raise InputError when an output exists and may not be replaced: what is not of the kind ``ours`` never is."""
    refuse_foreign(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not overwrite:
        raise InputError("exists already; give --overwrite to replace it, or another name", file=path)
    if ours is not None:
        ours.refuse_other(path)


def refuse_foreign(path: Path) -> None:
    """Refuse to write where no regular file or folder is, or through a link in the cache of a data set.

    Every writer asks this first.

    Raises:
        InputError: naming the place.
    """
    for place in _cache_places(path):
        if place.is_symlink():
            raise InputError("is a symbolic link; nothing is written through it", file=place)
    try:
        kind = path.lstat().st_mode
    except OSError:  # nothing is there, or nothing that can be seen: the writer will say so
        return
    if stat.S_ISLNK(kind):
        raise InputError("is a symbolic link; it is not replaced", file=path)
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise InputError("is no regular file or folder; it is not replaced", file=path)


def _cache_places(path: Path) -> list[Path]:
    """The ``.cache`` of the data set in which ``path`` lies, and the folders from there to it, if it lies in one."""
    below: list[Path] = []
    for place in path.parents:
        below.append(place)
        if place.name == ".cache" and (place.parent / "dataset.json").is_file():
            return below
    return []
