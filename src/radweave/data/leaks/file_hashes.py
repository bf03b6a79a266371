"""Hashes of a data set's image files as they are now, each file read once.

DATASET/.cache/hashes.json    path -> size, times and hash of each file; a file whose size or times changed is read anew
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file, sha256_json
from radweave.base.json_files import read_json
from radweave.base.storage import write_text
from radweave.data.cache.arrays import stamp
from radweave.data.cache.workers import in_order
from radweave.data.dataset import Dataset


def content_hash(path: Path) -> str:
    """SHA-256 of a file, or of the names and hashes of a series folder's files.

    Raises:
        InputError: if there is nothing in it.
        OSError: if it cannot be read.
    """
    if path.is_dir():
        members = {member.name: sha256_file(member) for member in sorted(path.iterdir()) if member.is_file()}
        if not members:
            raise InputError("series folder is empty", file=path)
        return sha256_json(members)
    if path.stat().st_size == 0:
        raise InputError("image file is empty", file=path)
    return sha256_file(path)


def hashes_of(dataset: Dataset, paths: Iterable[str]) -> dict[str, str]:
    """Path inside the data set -> hash of its content. What is missing or cannot be read is left out.

    The times of a file's content and of its entry (which nobody can set back) decide whether it is read anew.
    """
    place = dataset.path / ".cache" / "hashes.json"
    known = _known(place)
    found: dict[str, str] = {}
    seen: dict[str, list[Any]] = {}

    def read(path: str) -> tuple[str, list[Any] | None]:
        try:
            full = dataset.image_path(path)
            return path, [stamp(full), content_hash(full)]
        except (InputError, OSError):
            return path, None

    asked = list(dict.fromkeys(paths))
    # Most files are as they were: looking at their times takes less than handing them to a thread.
    changed = [path for path in asked if not _holds(known.get(path), dataset.path / path)]
    read_anew = {path: entry for path, (_, entry) in in_order(read, changed)}
    for path in asked:
        entry = read_anew[path] if path in read_anew else known[path]
        if entry is not None:
            seen[path] = entry
            found[path] = str(entry[1])
    if seen != known:
        # A data set that cannot be written is hashed each time.
        with suppress(InputError, OSError):
            write_text(place, _table(seen))
    return found


def _holds(kept: Any, path: Path) -> bool:
    """Whether what is kept of a file was taken of the file that is there now."""
    return isinstance(kept, list) and len(kept) == 2 and kept[0] != "" and kept[0] == stamp(path)


def _known(place: Path) -> dict[str, Any]:
    try:
        known = read_json(place)
    except (InputError, OSError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _table(entries: dict[str, list[Any]]) -> str:
    return json.dumps(entries, ensure_ascii=True, separators=(",", ":")) + "\n"
