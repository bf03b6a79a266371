"""What ``--overwrite`` may replace: an output of the same kind that we wrote, and nothing of anybody else's.

A folder is known by what a file in it says, not by the file's name, and it goes only if each file in it is one that we
write there: what a user laid beside stays, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object

# Locks, and what a killed writer left: never a user's.
_OURS_ANYWHERE = re.compile(r"\.lock|\..+\.lock|\..+\.[0-9a-f]{8}\.(?:partial|old)")


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of output folder.

    Args:
        name: the kind in words, with its article.
        mark: a file that every folder of the kind holds.
        holds: patterns of the paths that a folder of this kind may hold beside ``mark``; None, or an InputError, where
            what the folder says of itself is not what this kind writes. ``*`` matches ``/`` too.
    """

    name: str
    mark: str
    holds: Callable[[Path], Sequence[str] | None]

    def refuse_other(self, path: Path) -> None:
        """Refuse a folder that is not of this kind, or holds a file that is not ours.

        Raises:
            InputError: naming the folder, or the file.
        """
        if not path.is_dir():
            return  # a folder never replaces a file
        if not any(path.iterdir()):
            return
        if not (path / self.mark).is_file():
            reason = f"holds no {self.mark}: it is not what --overwrite is for, and it is not replaced"
            raise InputError(reason, file=path)
        try:
            patterns = self.holds(path)
        except InputError:
            patterns = None
        if patterns is None:
            raise InputError(f"is not {self.name}; it is not replaced", file=path)
        refuse_foreign_files(path, (self.mark, *patterns))


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of output file: its name in words, and whether a file is one."""

    name: str
    knows: Callable[[Path], bool]

    def refuse_other(self, path: Path) -> None:
        """Refuse a file of another kind, and any file of a data set.

        Raises:
            InputError: naming the file.
        """
        if any((folder / "dataset.json").is_file() for folder in path.absolute().parents):
            raise InputError("lies in a data set; it is not replaced", file=path)
        if path.is_file() and path.stat().st_size and not self.knows(path):
            raise InputError(f"is not {self.name}; it is not replaced", file=path)


def refuse_foreign_files(folder: Path, patterns: Sequence[str]) -> None:
    """Refuse a folder with a file, or an empty folder, that fits none of the patterns.

    Raises:
        InputError: naming the first, in the order of their names.
    """
    for path in _ends(folder):
        inside = path.relative_to(folder).as_posix()
        if any(_OURS_ANYWHERE.fullmatch(part) for part in inside.split("/")):
            continue
        shown = f"{inside}/" if path.is_dir() and not path.is_symlink() else inside
        if not any(fnmatchcase(shown, pattern) for pattern in patterns):
            raise InputError("holds a file that is not ours; take it away first", file=folder, got=inside)


def _ends(folder: Path) -> Iterator[Path]:
    """Files, links and empty folders below a folder."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            inside = list(_ends(path))
            yield from inside or [path]
        else:
            yield path


def record_kind(name: str, mark: str, fields: Sequence[str], beside: Sequence[str]) -> FolderKind:
    """A kind of folder whose ``mark`` is a JSON object with all of the ``fields``; ``beside`` are the other files."""

    def holds(folder: Path) -> Sequence[str] | None:
        return beside if set(fields) <= set(read_json_object(folder / mark)) else None

    return FolderKind(name, mark, holds)
