"""The radiographs of a data set as squares: one memory-mapped file beside an index.

DATASET/.cache/KEY/index.json    path -> row, stamps, checksums, unreadable images
DATASET/.cache/KEY/pixels.npy    (N, size, size) uint8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import code_hash, library_versions
from radweave.core.storage import sha256_json, write_folder
from radweave.core.study import ImageRef, Record
from radweave.data.cache.arrays import checksum, in_order, open_rows, stamp
from radweave.data.cache.parts import PIXELS, Entry, Part, PartRows, partial_array
from radweave.data.dataset import Dataset
from radweave.data.square import PREPROCESSING_VERSION, to_square

READING: Final = ("radweave.io", "radweave.data.square", "radweave.data.ct")
"""The modules that turn files into pixels."""


def made_by() -> dict[str, Any]:
    """Everything beside the image file and the options that determines pixels; part of every cache key."""
    return {"version": PREPROCESSING_VERSION, "code": code_hash(*READING), "libraries": library_versions()}


class CacheIndex(Record):
    """``index.json``: ``rows`` path -> row; ``unreadable`` path -> reason; ``stamps`` path -> stamp of the image file.

    ``sums`` are checksums of the rows, or ``files`` names that are hashes of the rows' sources; ``file_stamps`` are
    the stamps of the files that hold the rows (``kept`` on disk).
    """

    model_config = ConfigDict(populate_by_name=True)

    rows: dict[str, int]
    unreadable: dict[str, str]
    stamps: dict[str, str]
    sums: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    file_stamps: tuple[str, ...] = Field(alias="kept")

    @property
    def digest(self) -> str:
        """Hash of all pixels and of the paths of their images."""
        return sha256_json([self.rows, sorted(self.unreadable), self.sums, self.files])


@dataclass(frozen=True, slots=True)
class CacheState:
    """A cache as it is on disk: nothing, or an index, its pixels, and the images to read again.

    ``file_stamps`` are those of the cache's own files now; files whose stamps differ from the index were verified.
    """

    index: CacheIndex | None = None
    pixels: Any = None
    stale: set[str] = field(default_factory=set)
    file_stamps: tuple[str, ...] = ()

    @property
    def is_touched(self) -> bool:
        return self.index is not None and self.file_stamps != self.index.file_stamps

    @property
    def is_whole(self) -> bool:
        return self.index is not None and not self.stale

    def holds(self, path: str) -> bool:
        """True if the cached pixels of this image can be used."""
        return self.index is not None and path in self.index.stamps and path not in self.stale

    def get(self, path: str) -> Any:
        """The cached pixels of an image, or the reason why it cannot be read."""
        assert self.index is not None
        return self.index.unreadable[path] if path in self.index.unreadable else self.pixels[self.index.rows[path]]


def read_index(folder: Path) -> CacheIndex | None:
    """The index of a cache; None if it is missing or inconsistent."""
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
    """The images whose files have changed since they were read, by their stamps."""
    return {path for path, recorded in index.stamps.items() if stamp(dataset.path / path) != recorded}


def find_squares(dataset: Dataset, folder: Path, size: int) -> CacheState:
    """The state of the cache of a data set."""
    index = read_index(folder)
    if index is None:
        return CacheState()
    count = max(1, len(index.rows) + len(index.unreadable))
    pixels = open_rows(folder / PIXELS, np.uint8, (count, size, size))
    if pixels is None or len(index.sums) != len(index.rows):
        return CacheState()
    stale = changed_sources(dataset, index)
    state = CacheState(index, pixels, stale, file_stamps=(stamp(folder / PIXELS),))
    if state.is_touched:
        stale |= {path for path, row in index.rows.items() if checksum(pixels[row]) != index.sums[row]}
    return state


def fill_squares(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    state: CacheState,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Decode every image that ``state`` lacks, and rewrite the cache; a stopped build resumes.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    # Taken before an image is read, so that a change meanwhile is noticed at the next start.
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in refs}
    shape = (max(1, len(refs)), size, size)

    part_rows = PartRows.of(folder, size)

    def decode(ref: ImageRef) -> NDArray[np.uint8] | str:
        if state.holds(ref.path):
            cached: NDArray[np.uint8] | str = state.get(ref.path)
            return cached
        row = part_rows.get(ref.path, stamps[ref.path])
        return _decoded(dataset, ref, size) if row is None else row

    with partial_array(folder, shape, [ref.path for ref in refs], stamps) as rows:
        rest = refs[len(rows.entries) :]
        todo = sum(not state.holds(ref.path) for ref in refs)
        done = todo - sum(not state.holds(ref.path) for ref in rest)
        for ref, result in in_order(decode, rest):
            rows.append(ref.path, stamps[ref.path], result)
            if not state.holds(ref.path):
                done += 1
                if progress is not None:
                    progress(done, todo)
        with write_folder(folder, overwrite=True) as partial:
            rows.finish().rename(partial / PIXELS)
            write_json(partial / "index.json", _index(rows.entries, stamp(partial / PIXELS)).model_dump(by_alias=True))


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
    own = part.select(refs)
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in own}
    shape = (max(1, len(own)), size, size)
    with partial_array(part.path(folder), shape, [ref.path for ref in own], stamps, keep=True) as rows:
        rest = own[len(rows.entries) :]
        for done, (ref, result) in enumerate(in_order(lambda ref: _decoded(dataset, ref, size), rest), start=1):
            rows.append(ref.path, stamps[ref.path], result)
            if progress is not None:
                progress(done, len(rest))
        rows.finish()
    return {entry.path: entry.reason for entry in rows.entries if entry.reason is not None}


def _decoded(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8] | str:
    try:
        return read_square(dataset, ref, size)
    except InputError as error:
        return error.reason


def _index(entries: Sequence[Entry], pixels_stamp: str) -> CacheIndex:
    readable = [entry for entry in entries if entry.sum is not None]
    return CacheIndex(
        rows={entry.path: row for row, entry in enumerate(readable)},
        unreadable={entry.path: entry.reason for entry in entries if entry.reason is not None},
        stamps={entry.path: entry.stamp for entry in entries},
        sums=tuple(entry.sum for entry in readable if entry.sum is not None),
        file_stamps=(pixels_stamp,),
    )


def read_square(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8]:
    """Read one image of a data set as a square of the model's input size.

    Raises:
        InputError: if the file is missing, broken or no radiograph.
    """
    from radweave.io.images import read_radiograph

    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh, doubts=False)
    return to_square(radiograph.pixels, size)
