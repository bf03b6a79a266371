"""The radiographs of a data set as squares: one memory-mapped file beside an index.

DATASET/.cache/KEY/index.json    path -> row, stamps, checksums, what cannot be read
DATASET/.cache/KEY/pixels.npy    (N, size, size) uint8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.json_files import write_json
from radweave.base.storage import write_folder
from radweave.base.study import ImageRef
from radweave.data.cache.arrays import checksum, open_rows, stamp, write_rows
from radweave.data.cache.index import CacheIndex, Found, changed_sources, read_index
from radweave.data.dataset import Dataset

PIXELS = "pixels.npy"


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
    """Decode every image that ``found`` does not hold, and write the cache anew.

    Raises:
        CannotWriteError: if it cannot be written.
    """
    rows: dict[str, int] = {}
    unreadable: dict[str, str] = {}
    sums: list[str] = []
    # Taken before an image is read: one that changes meanwhile is then found changed at the next start.
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in refs}
    todo = sum(not found.holds(ref.path) for ref in refs)
    done = 0

    def decode(ref: ImageRef) -> NDArray[np.uint8] | str:
        if found.holds(ref.path):
            kept: NDArray[np.uint8] | str = found.get(ref.path)
            return kept
        try:
            return read_square(dataset, ref, size)
        except InputError as error:
            return error.reason

    with write_folder(folder, overwrite=True) as partial, ThreadPoolExecutor(max_workers=2) as pool:
        with write_rows(partial / PIXELS, np.uint8, (max(1, len(refs)), size, size)) as give:
            for ref, result in zip(refs, pool.map(decode, refs), strict=True):
                if isinstance(result, str):
                    unreadable[ref.path] = result
                else:
                    rows[ref.path] = len(rows)
                    sums.append(checksum(result))
                    give(result[None])
                done += not found.holds(ref.path)
                if progress is not None and not found.holds(ref.path):
                    progress(done, todo)
        index = CacheIndex(
            rows=rows, unreadable=unreadable, stamps=stamps, sums=tuple(sums), kept=(stamp(partial / PIXELS),)
        )
        write_json(partial / "index.json", index.model_dump())


def read_square(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8]:
    """Read one image of a dataset as the model sees it.

    Raises:
        InputError: if the file is missing, broken or no radiograph.
    """
    from radweave.data.reading.images import read_radiograph
    from radweave.data.transforms import to_square

    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh)
    return to_square(radiograph.pixels, size)
