"""Kinds of output that ``--overwrite`` may replace.

The content of a marker file identifies a folder. A folder with any file that this package does not write there is
refused, naming the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object

# Locks and leftovers of killed writers; no user's file has such a name.
_INTERNAL = re.compile(r"\.lock|\..+\.lock|\..+\.[0-9a-f]{8}\.(?:partial|old)")


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of output folder.

    Args:
        name: the kind in words, with its article.
        mark: the file that identifies the kind.
        holds: patterns of the other paths in such a folder (``*`` matches ``/`` too); None or an InputError if the
            content of ``mark`` is of another kind.
    """

    name: str
    mark: str
    holds: Callable[[Path], Sequence[str] | None]

    def refuse_other(self, path: Path) -> None:
        """Refuse a folder of another kind or with foreign files.

        Raises:
            InputError: naming the folder or the file.
        """
        if not path.is_dir():
            return  # a file at this path is refused by the writer
        if not any(path.iterdir()):
            return
        if not (path / self.mark).is_file():
            reason = f"holds no {self.mark}: --overwrite does not replace such a folder"
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
    """A kind of output file; ``knows`` recognises it."""

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
    """Refuse a folder with a file or empty folder that matches no pattern.

    Raises:
        InputError: naming the first in alphabetical order.
    """
    for path in _leaves(folder):
        inside = path.relative_to(folder).as_posix()
        if any(_INTERNAL.fullmatch(part) for part in inside.split("/")):
            continue
        shown = f"{inside}/" if path.is_dir() and not path.is_symlink() else inside
        if not any(fnmatchcase(shown, pattern) for pattern in patterns):
            raise InputError("holds a file that radweave does not write; move it away first", file=folder, got=inside)


def _leaves(folder: Path) -> Iterator[Path]:
    """Files, links and empty folders below a folder."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            inside = list(_leaves(path))
            yield from inside or [path]
        else:
            yield path


def record_kind(name: str, mark: str, fields: Sequence[str], other_files: Sequence[str]) -> FolderKind:
    """A kind of folder whose ``mark`` is a JSON object with all of the ``fields``."""

    def holds(folder: Path) -> Sequence[str] | None:
        return other_files if set(fields) <= set(read_json_object(folder / mark)) else None

    return FolderKind(name, mark, holds)
