"""The scans of a data set, prepared: one memory-mapped file each, beside an index of their own.

DATASET/.cache/KEY/index.json    path -> row, file of each row, what cannot be read
DATASET/.cache/scans/ab/ab12.npy (D, H, W) uint8, by content and preprocessing, shared by all indices
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from radweave.data.ct import CtPreprocessing
from radweave.data.ct_cache import CtCache, ScanRows
from radweave.data.dataset import Dataset
from radweave.errors import InputError
from radweave.storage import read_json, write_json
from radweave.types import ImageRef

SCANS = "scans"


def fill_scans(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    options: CtPreprocessing,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Prepare every scan that is not there yet, and write the index. A job that was stopped goes on where it was.

    Raises:
        InputError: if something cannot be written.
    """
    cached = CtCache(folder.parent / SCANS, options, depth="uint8")
    rows: dict[str, int] = {}
    files: list[str] = []
    unreadable: dict[str, str] = {}

    def keep(ref: ImageRef) -> Path | str:
        try:
            path = dataset.image_path(ref.path)
            place = cached.place(path)
            scan = None if cached.is_whole(place) else cached.prepare(path)
        except ValueError as error:  # what cannot be read costs its study; what cannot be written is raised below
            return error.reason if isinstance(error, InputError) else str(error)
        if scan is not None:
            cached.store(place, scan)
        return place

    with ThreadPoolExecutor(max_workers=2) as pool:
        for done, (ref, result) in enumerate(zip(refs, pool.map(keep, refs), strict=True), start=1):
            if isinstance(result, str):
                unreadable[ref.path] = result
            else:
                rows[ref.path] = len(files)
                files.append(result.relative_to(folder.parent / SCANS).as_posix())
            if progress is not None:
                progress(done, len(refs))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "index.json", {"rows": rows, "files": files, "unreadable": unreadable})


def are_there(folder: Path) -> bool:
    """Whether the index is there, and every file that it names."""
    place = folder / "index.json"
    return place.is_file() and all((folder.parent / SCANS / name).is_file() for name in read_json(place)["files"])


def open_scans(folder: Path, index: dict[str, Any], size: tuple[int, int, int]) -> ScanRows:
    """The scans of an index, by row."""
    return ScanRows([folder.parent / SCANS / name for name in index["files"]], size)
