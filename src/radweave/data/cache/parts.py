"""A cache that several processes make, each a part of the images, on one machine or on many that share a disk.

DATASET/.cache/KEY.parts/3-of-8.building/   rows and journal of a part, as ``unfinished`` writes them
DATASET/.cache/KEY.parts/3-of-8.lock        held by who makes this part

A part that was stopped goes on. Whoever makes the whole cache takes the rows of all parts, as far as their images are
as they were and the rows have their checksums, and reads the rest: any number of parts gives the same bytes as none.
The parts then go; one that is still being made goes at its own end.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.storage import exclusive, refuse_foreign, writing
from radweave.data.cache.arrays import checksum

# Rows that a build of a cache has written so far. A build that was stopped, or killed, goes on with them.
#
# DATASET/.cache/KEY.building/pixels.npy      the rows, in the order of the images; what comes later is missing or torn
# DATASET/.cache/KEY.building/journal.jsonl   one line an image: path, stamp, checksum of its row, or why it has none
#
# The journal is written after the rows it tells of, a shard at a time. At the next start a row counts if its image is
# the next one, as it was when it was read, and its bytes have the checksum; with the first that does not, the rest goes.


SHARD: Final = 256
"""Images whose rows a killed build may lose."""
PIXELS, JOURNAL = "pixels.npy", "journal.jsonl"


class Entry(NamedTuple):
    """An image that was read: its row's checksum, or the reason why it has none."""

    path: str
    stamp: str
    sum: str | None
    reason: str | None


@dataclass(slots=True)
class Unfinished:
    """Rows (H, W) uint8 that are written one after another. ``entries`` tells of those that are there already."""

    folder: Path
    shape: tuple[int, int, int]
    entries: list[Entry] = field(default_factory=list)
    _waiting: list[Entry] = field(default_factory=list)
    _rows: IO[bytes] | None = None

    def give(self, path: str, stamp: str, row: NDArray[np.uint8] | str) -> None:
        """Add the row of the next image, or the reason why it cannot be read."""
        assert self._rows is not None
        if isinstance(row, str):
            self._waiting.append(Entry(path, stamp, None, row))
        else:
            assert row.shape == self.shape[1:]
            self._rows.write(np.ascontiguousarray(row).data)
            self._waiting.append(Entry(path, stamp, checksum(row), None))
        if len(self._waiting) >= SHARD:
            self.keep()

    def keep(self) -> None:
        """Note what was given since."""
        assert self._rows is not None
        self._rows.flush()
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as told:
            told.writelines(json.dumps(entry) + "\n" for entry in self._waiting)
        self.entries += self._waiting
        self._waiting.clear()

    def finish(self) -> Path:
        """The file of all rows, as an array; what was not given is 0."""
        assert self._rows is not None
        self.keep()
        self._rows.truncate(_place(self.shape, self.shape[0]))
        self._rows.close()
        return self.folder / PIXELS

    def close(self) -> None:
        """Let go of the file. What was not noted is lost."""
        if self._rows is not None:
            with suppress(OSError):
                self._rows.close()

    def _go_on(self, images: Sequence[str], stamps: Mapping[str, str]) -> None:
        """Take what an earlier build wrote, as far as it holds, and open the file behind it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (PIXELS, JOURNAL):
            refuse_foreign(self.folder / name)
        rows, told = self.folder / PIXELS, self.folder / JOURNAL
        self.entries = list(_sound(rows, journal(told), self.shape, images, stamps))
        told.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")
        self._rows = rows.open("r+b" if rows.exists() else "w+b")
        np.lib.format.write_array_header_1_0(self._rows, _header(self.shape))
        self._rows.truncate(_place(self.shape, sum(entry.sum is not None for entry in self.entries)))
        self._rows.seek(0, 2)


@contextmanager
def unfinished(
    cache: Path, shape: tuple[int, int, int], images: Sequence[str], stamps: Mapping[str, str], *, stays: bool = False
) -> Iterator[Unfinished]:
    """The rows that were written for ``cache``, to go on with; the caller holds its lock.

    They stay where the block is stopped, and go at its end, or where the disk is full.

    Args:
        shape: (N, H, W) of the whole array.
        images: paths in the order of their rows.
        stamps: of the image files as they are now.
        stays: keep them at the end too, for who puts parts together.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    folder = cache.with_name(f"{cache.name}.building")
    with writing(folder):
        found = Unfinished(folder, shape)
        try:
            found._go_on(images, stamps)
            yield found
        except OSError:
            found.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            found.close()
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)


def _header(shape: tuple[int, int, int]) -> dict[str, Any]:
    return {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False, "shape": shape}


def _place(shape: tuple[int, int, int], row: int) -> int:
    """Where a row begins in the file."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, _header(shape))
    return header.tell() + row * shape[1] * shape[2]


def journal(path: Path) -> Iterator[Entry]:
    """Entries up to the first line that is none: a kill tears the last one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not (isinstance(told, list) and len(told) == 4 and all(isinstance(part, str | None) for part in told)):
            return
        yield Entry(*told)


def _sound(
    rows: Path,
    entries: Iterator[Entry],
    shape: tuple[int, int, int],
    images: Sequence[str],
    stamps: Mapping[str, str],
) -> Iterator[Entry]:
    """The entries whose images and rows are as they were, up to the first that is not."""
    if not rows.is_file():
        return
    with rows.open("rb") as file:
        file.seek(_place(shape, 0))
        for path, entry in zip(images, entries, strict=False):
            if entry.path != path or entry.stamp != stamps[path] or (entry.sum is None) == (entry.reason is None):
                return
            if entry.sum and checksum(np.frombuffer(file.read(shape[1] * shape[2]), np.uint8)) != entry.sum:
                return
            yield entry


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
