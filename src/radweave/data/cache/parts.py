"""A cache that several processes make, each a part of the images, on one machine or on many that share a disk.

DATASET/.cache/KEY.parts/3-of-8.building/   rows and journal of a part, as ``unfinished`` writes them
DATASET/.cache/KEY.parts/3-of-8.lock        held by who makes this part

A part that was stopped goes on. Whoever makes the whole cache takes the rows of all parts, as far as their images are
as they were and the rows have their checksums, and reads the rest: any number of parts gives the same bytes as none.
The parts then go; one that is still being made goes at its own end.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.locks import exclusive
from radweave.data.cache.arrays import checksum
from radweave.data.cache.unfinished import JOURNAL, PIXELS, Entry, journal

MOST_PARTS: Final = 100_000
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Part:
    """Number ``number`` (from 1) of ``count`` parts of equal size."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Part:
        """Read ``3/8``.

        Raises:
            InputError: if it is no such part.
        """
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        part = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= part.number <= part.count <= MOST_PARTS:
            raise InputError("no such part", field="--part", got=text, expected="such as 3/8, from 1/8 to 8/8")
        return part

    def cut(self, items: Sequence[Item]) -> Sequence[Item]:
        """The part of some items, which lie one after another."""
        return items[len(items) * (self.number - 1) // self.count : len(items) * self.number // self.count]

    def place(self, cache: Path) -> Path:
        """What the part of a cache is called; its rows lie in this name with ``.building`` behind it."""
        return parts_of(cache) / f"{self.number}-of-{self.count}"


def parts_of(cache: Path) -> Path:
    """The folder of all parts of a cache."""
    return cache.with_name(f"{cache.name}.parts")


def remove_parts(cache: Path) -> None:
    """Remove the parts of a cache and their locks, but none whose lock is held or cannot be taken."""
    folder = parts_of(cache)
    if folder.is_symlink():
        return
    for place in {path.with_suffix("") for path in folder.glob("*-of-*.*") if path.suffix in (".building", ".lock")}:
        lock = place.with_suffix(".lock")
        with suppress(OSError, InputError), exclusive(lock, wait=False):
            shutil.rmtree(place.with_suffix(".building"), ignore_errors=True)
            lock.unlink()
    with suppress(OSError):  # a part is being made, or there was none
        folder.rmdir()


class _Row(NamedTuple):
    file: Path
    place: int
    entry: Entry


@dataclass(slots=True)
class Made:
    """Rows (size, size) that parts have made."""

    size: int
    rows: dict[str, _Row] = field(default_factory=dict)

    @classmethod
    def of(cls, cache: Path, size: int) -> Made:
        """What lies there of all parts, finished or not."""
        made = cls(size)
        for folder in sorted(parts_of(cache).glob("*-of-*.building")):
            file = folder / PIXELS
            start = _first_byte(file)
            if start is None:
                continue
            count = 0
            for entry in journal(folder / JOURNAL):
                made.rows[entry.path] = _Row(file, start + count * size * size, entry)
                count += entry.sum is not None
        return made

    def get(self, path: str, stamp: str) -> NDArray[np.uint8] | str | None:
        """The row of an image, or the reason why it has none; None where no part has made it of this very file."""
        row = self.rows.get(path)
        if row is None or row.entry.stamp != stamp:
            return None
        if row.entry.sum is None:
            return row.entry.reason
        try:
            with row.file.open("rb") as file:
                file.seek(row.place)
                data = file.read(self.size * self.size)
        except OSError:
            return None
        if len(data) != self.size * self.size:
            return None
        pixels = np.frombuffer(data, np.uint8).reshape(self.size, self.size)
        return pixels if checksum(pixels) == row.entry.sum else None


def _first_byte(file: Path) -> int | None:
    """Where the rows of an array on disk begin; None where there is none."""
    try:
        with file.open("rb") as opened:
            np.lib.format.read_magic(opened)
            np.lib.format.read_array_header_1_0(opened)
            return opened.tell()
    except (OSError, ValueError, EOFError):
        return None
