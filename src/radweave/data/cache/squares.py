"""The radiographs of a data set as squares: one memory-mapped file beside an index.

DATASET/.cache/KEY/index.json    path -> row, stamps, checksums, what cannot be read
DATASET/.cache/KEY/pixels.npy    (N, size, size) uint8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import code_hash, library_versions
from radweave.core.storage import sha256_json, write_folder
from radweave.core.study import ImageRef, Record
from radweave.data.augmentation import PREPROCESSING_VERSION
from radweave.data.cache.arrays import checksum, in_order, open_rows, stamp
from radweave.data.cache.parts import PIXELS, Entry, Made, Part, unfinished
from radweave.data.dataset import Dataset

# What a cache of prepared images writes down about itself, and what of it still holds.


READING: Final = ("radweave.io", "radweave.data.augmentation", "radweave.data.ct")
"""The rooms that make pixels of files."""


def made_by() -> dict[str, Any]:
    """What decides pixels beside the image file and the options. Part of the key of everything that is kept of them."""
    return {"version": PREPROCESSING_VERSION, "code": code_hash(*READING), "libraries": library_versions()}


class CacheIndex(Record):
    """``index.json``: ``rows`` path -> row; ``unreadable`` path -> reason; ``stamps`` path -> stamp of the image file.

    ``sums`` are checksums of the rows, or ``files`` names that are hashes of what the rows were made of; ``kept`` are
    the stamps of the files that hold the rows.
    """

    rows: dict[str, int]
    unreadable: dict[str, str]
    stamps: dict[str, str]
    sums: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    kept: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash of all pixels, and of which images they are."""
        return sha256_json([self.rows, sorted(self.unreadable), self.sums, self.files])


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a cache: nothing, or an index, its pixels, and the images that must be read again.

    ``kept`` are the stamps that the cache's own files have now; where they differ from the index, the files were read
    and checked.
    """

    index: CacheIndex | None = None
    pixels: Any = None
    stale: set[str] = field(default_factory=set)
    kept: tuple[str, ...] = ()

    @property
    def is_touched(self) -> bool:
        return self.index is not None and self.kept != self.index.kept

    @property
    def is_whole(self) -> bool:
        return self.index is not None and not self.stale

    def holds(self, path: str) -> bool:
        """Whether what is kept of this image can be used."""
        return self.index is not None and path in self.index.stamps and path not in self.stale

    def get(self, path: str) -> Any:
        """The pixels of an image that it holds, or the reason why it cannot be read."""
        assert self.index is not None
        return self.index.unreadable[path] if path in self.index.unreadable else self.pixels[self.index.rows[path]]


def read_index(folder: Path) -> CacheIndex | None:
    """The index of a cache; None where there is none, or one that contradicts itself."""
    try:
        index = CacheIndex.model_validate(read_json(folder / "index.json"))
    except (InputError, ValidationError, OSError, RecursionError):
        return None
    is_sound = (
        index.rows.keys().isdisjoint(index.unreadable)
        and index.stamps.keys() == index.rows.keys() | index.unreadable.keys()
        and sorted(index.rows.values()) == list(range(len(index.rows)))
    )
    return index if is_sound else None


def changed_sources(dataset: Dataset, index: CacheIndex) -> set[str]:
    """The images whose files are not those that were read, by their stamps alone."""
    return {path for path, told in index.stamps.items() if stamp(dataset.path / path) != told}


def find_squares(dataset: Dataset, folder: Path, size: int) -> Found:
    """What the cache holds, and which images must be read again."""
    index = read_index(folder)
    if index is None:
        return Found()
    count = max(1, len(index.rows) + len(index.unreadable))
    pixels = open_rows(folder / PIXELS, np.uint8, (count, size, size))
    if pixels is None or len(index.sums) != len(index.rows):
        return Found()
    stale = changed_sources(dataset, index)
    found = Found(index, pixels, stale, kept=(stamp(folder / PIXELS),))
    if found.is_touched:
        stale |= {path for path, row in index.rows.items() if checksum(pixels[row]) != index.sums[row]}
    return found


def fill_squares(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    found: Found,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Decode every image that ``found`` does not hold, and write the cache anew. A build that was stopped goes on.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    # Taken before an image is read: one that changes meanwhile is then found changed at the next start.
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in refs}
    shape = (max(1, len(refs)), size, size)

    made = Made.of(folder, size)

    def decode(ref: ImageRef) -> NDArray[np.uint8] | str:
        if found.holds(ref.path):
            kept: NDArray[np.uint8] | str = found.get(ref.path)
            return kept
        row = made.get(ref.path, stamps[ref.path])
        return _decoded(dataset, ref, size) if row is None else row

    with unfinished(folder, shape, [ref.path for ref in refs], stamps) as rows:
        rest = refs[len(rows.entries) :]
        todo = sum(not found.holds(ref.path) for ref in refs)
        done = todo - sum(not found.holds(ref.path) for ref in rest)
        for ref, result in in_order(decode, rest):
            rows.give(ref.path, stamps[ref.path], result)
            if not found.holds(ref.path):
                done += 1
                if progress is not None:
                    progress(done, todo)
        with write_folder(folder, overwrite=True) as partial:
            rows.finish().rename(partial / PIXELS)
            write_json(partial / "index.json", _index(rows.entries, stamp(partial / PIXELS)).model_dump())


def fill_part(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    part: Part,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Decode a part of the images beside the cache; path -> reason of those that cannot be read.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    own = part.cut(refs)
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in own}
    shape = (max(1, len(own)), size, size)
    with unfinished(part.place(folder), shape, [ref.path for ref in own], stamps, stays=True) as rows:
        rest = own[len(rows.entries) :]
        for done, (ref, result) in enumerate(in_order(lambda ref: _decoded(dataset, ref, size), rest), start=1):
            rows.give(ref.path, stamps[ref.path], result)
            if progress is not None:
                progress(done, len(rest))
        rows.finish()
    return {entry.path: entry.reason for entry in rows.entries if entry.reason is not None}


def _decoded(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8] | str:
    try:
        return read_square(dataset, ref, size)
    except InputError as error:
        return error.reason


def _index(entries: Sequence[Entry], kept: str) -> CacheIndex:
    readable = [entry for entry in entries if entry.sum is not None]
    return CacheIndex(
        rows={entry.path: row for row, entry in enumerate(readable)},
        unreadable={entry.path: entry.reason for entry in entries if entry.reason is not None},
        stamps={entry.path: entry.stamp for entry in entries},
        sums=tuple(entry.sum for entry in readable if entry.sum is not None),
        kept=(kept,),
    )


def read_square(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8]:
    """Read one image of a dataset as the model sees it.

    Raises:
        InputError: if the file is missing, broken or no radiograph.
    """
    from radweave.data.augmentation import to_square
    from radweave.io.images import read_radiograph

    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh, doubts=False)
    return to_square(radiograph.pixels, size)
