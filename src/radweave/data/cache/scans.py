"""The scans of a data set, prepared: one memory-mapped file each, beside an index of their own.

DATASET/.cache/KEY/index.json    path -> row, stamps, file of each row, what cannot be read
DATASET/.cache/scans/ab/ab12.npy (D, H, W) uint8, by content and preprocessing, shared by all indices
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from radweave.base.errors import InputError
from radweave.base.json_files import write_json
from radweave.base.storage import write_aside
from radweave.base.study import ImageRef
from radweave.data.cache.arrays import stamp
from radweave.data.cache.ct import CtCache, ScanRows
from radweave.data.cache.index import CacheIndex, Found, changed_sources, read_index
from radweave.data.cache.parts import Part
from radweave.data.cache.workers import in_order
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset

SCANS = "scans"


def find_scans(dataset: Dataset, folder: Path, options: CtPreprocessing) -> Found:
    """What the cache holds, and which scans must be read again."""
    assert options.size is not None
    index = read_index(folder)
    if index is None or not len(index.rows) == len(index.files) == len(index.kept):
        return Found()
    files = [folder.parent / SCANS / name for name in index.files]
    kept = tuple(stamp(file) for file in files)
    cached = CtCache(folder.parent / SCANS, options, depth="uint8")
    stale = changed_sources(dataset, index)
    for path, row in index.rows.items():
        if kept[row] != index.kept[row] and not cached.is_whole(files[row]):
            stale.add(path)
    return Found(index, ScanRows(files, options.size), stale, kept=kept)


def fill_scans(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    options: CtPreprocessing,
    found: Found,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Prepare every scan that is not there yet, and write the index. A job that was stopped goes on where it was.

    Raises:
        CannotWriteError: if something cannot be written.
    """
    cached = CtCache(folder.parent / SCANS, options, depth="uint8")
    rows: dict[str, int] = {}
    files: list[Path] = []
    unreadable: dict[str, str] = {}
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in refs}

    def kept_already(path: str) -> Path | str:
        assert found.index is not None
        if path in found.index.unreadable:
            return found.index.unreadable[path]
        row = found.index.rows[path]
        place = folder.parent / SCANS / found.index.files[row]
        if not place.is_file():  # the cache cannot be written, and goes on elsewhere
            with write_aside(place) as partial:
                shutil.copyfile(found.pixels.files[row], partial)
        return place

    def keep(ref: ImageRef) -> Path | str:
        return kept_already(ref.path) if found.holds(ref.path) else _kept(dataset, ref, cached)

    for done, (ref, result) in enumerate(in_order(keep, refs), start=1):
        if isinstance(result, str):
            unreadable[ref.path] = result
        else:
            rows[ref.path] = len(files)
            files.append(result)
        if progress is not None:
            progress(done, len(refs))
    index = CacheIndex(
        rows=rows,
        unreadable=unreadable,
        stamps=stamps,
        files=tuple(file.relative_to(folder.parent / SCANS).as_posix() for file in files),
        kept=tuple(stamp(file) for file in files),
    )
    write_json(folder / "index.json", index.model_dump())


def fill_part(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    options: CtPreprocessing,
    part: Part,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Prepare a part of the scans, which any index finds by their content; path -> reason of those that cannot be read.

    Raises:
        CannotWriteError: if something cannot be written.
    """
    cached, own = CtCache(folder.parent / SCANS, options, depth="uint8"), part.cut(refs)
    unreadable: dict[str, str] = {}
    for done, (ref, result) in enumerate(in_order(lambda ref: _kept(dataset, ref, cached), own), start=1):
        if isinstance(result, str):
            unreadable[ref.path] = result
        if progress is not None:
            progress(done, len(own))
    return unreadable


def _kept(dataset: Dataset, ref: ImageRef, cached: CtCache) -> Path | str:
    """Where a scan lies prepared, now at the latest, or the reason why it cannot be read."""
    try:
        place, scan = cached.find(dataset.image_path(ref.path))
    except ValueError as error:  # what cannot be read costs its study; what cannot be written is raised below
        return error.reason if isinstance(error, InputError) else str(error)
    if scan is not None:
        cached.store(place, scan)
    return place
