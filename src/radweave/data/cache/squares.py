"""The radiographs of a data set as squares: one memory-mapped file beside an index.

DATASET/.cache/KEY/index.json    path -> row, stamps, checksums, what cannot be read
DATASET/.cache/KEY/pixels.npy    (N, size, size) uint8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.json_files import write_json
from radweave.base.storage import write_folder
from radweave.base.study import ImageRef
from radweave.data.cache.arrays import checksum, open_rows, stamp
from radweave.data.cache.index import CacheIndex, Found, changed_sources, read_index
from radweave.data.cache.parts import Made, Part
from radweave.data.cache.unfinished import PIXELS, Entry, unfinished
from radweave.data.cache.workers import in_order
from radweave.data.dataset import Dataset


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
    from radweave.data.preprocessing import to_square
    from radweave.data.reading.images import read_radiograph

    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh, doubts=False)
    return to_square(radiograph.pixels, size)
