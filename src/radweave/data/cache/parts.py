"""A cache built by several processes, each a part of the images, on one machine or several with a shared disk.

DATASET/.cache/KEY.parts/3-of-8.building/   rows and journal of a part, by ``partial_array``
DATASET/.cache/KEY.parts/3-of-8.lock        held by the process that builds this part

A stopped part resumes. The process that builds the whole cache takes the rows of all parts whose images are unchanged
and whose checksums hold, and reads the rest: any number of parts gives the same bytes as none. It then removes the
parts; a part that is still being built removes itself when it ends.
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

# The rows that a build has written so far; a stopped or killed build resumes with them.
#
# DATASET/.cache/KEY.building/pixels.npy      the rows, in the order of the images; the last may be torn
# DATASET/.cache/KEY.building/journal.jsonl   one line an image: path, stamp, checksum of its row, or the error
#
# The journal is written after its rows, a shard at a time. A resumed build keeps rows while their images come in order
# and unchanged and their bytes have the checksum, and drops the rest.

SHARD: Final = 256
"""Most images whose rows a killed build may lose."""
PIXELS, JOURNAL = "pixels.npy", "journal.jsonl"


class Entry(NamedTuple):
    """An image that was read: the checksum of its row, or the reason of the failure."""

    path: str
    stamp: str
    sum: str | None
    reason: str | None


@dataclass(slots=True)
class PartialArray:
    """Rows (H, W) uint8 appended to a file; ``entries`` describes those written so far."""

    folder: Path
    shape: tuple[int, int, int]
    entries: list[Entry] = field(default_factory=list)
    _waiting: list[Entry] = field(default_factory=list)
    _rows: IO[bytes] | None = None

    def append(self, path: str, stamp: str, row: NDArray[np.uint8] | str) -> None:
        """Append the row of the next image, or the reason why it cannot be read."""
        assert self._rows is not None
        if isinstance(row, str):
            self._waiting.append(Entry(path, stamp, None, row))
        else:
            assert row.shape == self.shape[1:]
            self._rows.write(np.ascontiguousarray(row).data)
            self._waiting.append(Entry(path, stamp, checksum(row), None))
        if len(self._waiting) >= SHARD:
            self.flush()

    def flush(self) -> None:
        """Write the journal of the rows appended since the last call."""
        assert self._rows is not None
        self._rows.flush()
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in self._waiting)
        self.entries += self._waiting
        self._waiting.clear()

    def finish(self) -> Path:
        """Complete the file to a whole array, missing rows 0, and return its path."""
        assert self._rows is not None
        self.flush()
        self._rows.truncate(_row_offset(self.shape, self.shape[0]))
        self._rows.close()
        return self.folder / PIXELS

    def close(self) -> None:
        """Close the file; rows without a journal line are lost."""
        if self._rows is not None:
            with suppress(OSError):
                self._rows.close()

    def _resume(self, images: Sequence[str], stamps: Mapping[str, str]) -> None:
        """Keep the valid rows of an earlier build, and open the file behind them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (PIXELS, JOURNAL):
            refuse_foreign(self.folder / name)
        rows, journal_path = self.folder / PIXELS, self.folder / JOURNAL
        self.entries = list(_valid_entries(rows, journal(journal_path), self.shape, images, stamps))
        journal_path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries), encoding="utf-8")
        self._rows = rows.open("r+b" if rows.exists() else "w+b")
        np.lib.format.write_array_header_1_0(self._rows, _header(self.shape))
        self._rows.truncate(_row_offset(self.shape, sum(entry.sum is not None for entry in self.entries)))
        self._rows.seek(0, 2)


@contextmanager
def partial_array(
    cache: Path, shape: tuple[int, int, int], images: Sequence[str], stamps: Mapping[str, str], *, keep: bool = False
) -> Iterator[PartialArray]:
    """Open the rows written so far for ``cache``; the caller holds its lock.

    They stay when the block is stopped; they are removed at its end, or when the disk is full.

    Args:
        shape: (N, H, W) of the whole array.
        images: paths in the order of their rows.
        stamps: of the image files as they are now.
        keep: leave them at the end, for the process that merges parts.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    folder = cache.with_name(f"{cache.name}.building")
    with writing(folder):
        array = PartialArray(folder, shape)
        try:
            array._resume(images, stamps)
            yield array
        except OSError:
            array.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            array.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _header(shape: tuple[int, int, int]) -> dict[str, Any]:
    return {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False, "shape": shape}


def _row_offset(shape: tuple[int, int, int], row: int) -> int:
    """First byte of a row in the file."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, _header(shape))
    return header.tell() + row * shape[1] * shape[2]


def journal(path: Path) -> Iterator[Entry]:
    """Entries up to the first invalid line: a kill tears the last one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not (isinstance(values, list) and len(values) == 4 and all(isinstance(part, str | None) for part in values)):
            return
        yield Entry(*values)


def _valid_entries(
    rows: Path,
    entries: Iterator[Entry],
    shape: tuple[int, int, int],
    images: Sequence[str],
    stamps: Mapping[str, str],
) -> Iterator[Entry]:
    """The entries up to the first whose image or row has changed."""
    if not rows.is_file():
        return
    with rows.open("rb") as file:
        file.seek(_row_offset(shape, 0))
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
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        part = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= part.number <= part.count <= MOST_PARTS:
            raise InputError("no such part", field="--part", got=text, expected="such as 3/8, from 1/8 to 8/8")
        return part

    def select(self, items: Sequence[Item]) -> Sequence[Item]:
        """The contiguous items of this part."""
        return items[len(items) * (self.number - 1) // self.count : len(items) * self.number // self.count]

    def path(self, cache: Path) -> Path:
        """Path of this part of a cache, to which ``.building`` and ``.lock`` are appended."""
        return parts_folder(cache) / f"{self.number}-of-{self.count}"


def parts_folder(cache: Path) -> Path:
    """The folder of all parts of a cache."""
    return cache.with_name(f"{cache.name}.parts")


def remove_parts(cache: Path) -> None:
    """Remove the parts of a cache and their locks, except those whose lock is held or cannot be taken."""
    folder = parts_folder(cache)
    if folder.is_symlink():
        return
    for part in {path.with_suffix("") for path in folder.glob("*-of-*.*") if path.suffix in (".building", ".lock")}:
        lock = part.with_suffix(".lock")
        with suppress(OSError, InputError), exclusive(lock, wait=False):
            shutil.rmtree(part.with_suffix(".building"), ignore_errors=True)
            lock.unlink()
    with suppress(OSError):  # a part is being built, or there was none
        folder.rmdir()


class _Row(NamedTuple):
    file: Path
    offset: int
    entry: Entry


@dataclass(slots=True)
class PartRows:
    """Rows (size, size) that parts have written."""

    size: int
    rows: dict[str, _Row] = field(default_factory=dict)

    @classmethod
    def of(cls, cache: Path, size: int) -> PartRows:
        """The rows on disk of all parts, finished or not."""
        rows = cls(size)
        for folder in sorted(parts_folder(cache).glob("*-of-*.building")):
            file = folder / PIXELS
            start = _first_byte(file)
            if start is None:
                continue
            count = 0
            for entry in journal(folder / JOURNAL):
                rows.rows[entry.path] = _Row(file, start + count * size * size, entry)
                count += entry.sum is not None
        return rows

    def get(self, path: str, stamp: str) -> NDArray[np.uint8] | str | None:
        """The row of an image, or the reason of its failure; None if no part has read this very file."""
        row = self.rows.get(path)
        if row is None or row.entry.stamp != stamp:
            return None
        if row.entry.sum is None:
            return row.entry.reason
        try:
            with row.file.open("rb") as file:
                file.seek(row.offset)
                data = file.read(self.size * self.size)
        except OSError:
            return None
        if len(data) != self.size * self.size:
            return None
        pixels = np.frombuffer(data, np.uint8).reshape(self.size, self.size)
        return pixels if checksum(pixels) == row.entry.sum else None


def _first_byte(file: Path) -> int | None:
    """First byte of the rows of an array on disk; None without one."""
    try:
        with file.open("rb") as opened:
            np.lib.format.read_magic(opened)
            np.lib.format.read_array_header_1_0(opened)
            return opened.tell()
    except (OSError, ValueError, EOFError):
        return None
