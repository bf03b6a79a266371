"""Decoded images, once: a memory-mapped array of squares beside an index.

    cache = build_cache(dataset, size=128)
    cache.pixels[cache.rows["images/a.png"]]      # (128, 128) uint8

The cache is keyed by the manifest and the preprocessing, so a changed data set or size makes a new one. An image that
cannot be read is listed with the reason; it costs its study, never the others.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from numpy.typing import NDArray

from radweave.data.dataset import Dataset
from radweave.errors import InputError
from radweave.storage import read_json, sha256_json, write_folder, write_json
from radweave.types import ImageRef

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class PixelCache:
    """``pixels`` (N, size, size) uint8; ``rows`` image path -> row; ``unreadable`` image path -> reason."""

    pixels: NDArray[np.uint8]
    rows: dict[str, int]
    unreadable: dict[str, str]


def build_cache(dataset: Dataset, *, size: int, progress: Progress | None = None) -> PixelCache:
    """Open the cache of a dataset at this size; decode every radiograph where there is none yet.

    It lies in ``DATASET/.cache``, or in a temporary folder when the dataset cannot be written.
    """
    from radweave.data.transforms import PREPROCESSING_VERSION

    key = sha256_json({"manifest": dataset.fingerprint(), "size": size, "version": PREPROCESSING_VERSION})[:16]
    folder = dataset.path / ".cache" / key
    if not (folder / "index.json").is_file():
        try:
            _decode_all(dataset, folder, size, progress)
        except (InputError, PermissionError):
            folder = Path(mkdtemp(prefix="radweave-cache-")) / key
            _decode_all(dataset, folder, size, progress)
    index = read_json(folder / "index.json")
    pixels = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
    return PixelCache(pixels=pixels, rows=index["rows"], unreadable=index["unreadable"])


def _decode_all(dataset: Dataset, folder: Path, size: int, progress: Progress | None) -> None:
    images = (ref for study in dataset.studies() for ref in study.images)
    refs = list({ref.path: ref for ref in images if ref.modality == "xray"}.values())
    rows: dict[str, int] = {}
    unreadable: dict[str, str] = {}

    def decode(ref: ImageRef) -> NDArray[np.uint8] | str:
        try:
            return read_square(dataset, ref, size)
        except InputError as error:
            return error.reason

    with write_folder(folder) as partial:
        shape = (max(1, len(refs)), size, size)
        pixels = np.lib.format.open_memmap(partial / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        with ThreadPoolExecutor(max_workers=2) as pool:
            for done, (ref, result) in enumerate(zip(refs, pool.map(decode, refs), strict=True), start=1):
                if isinstance(result, str):
                    unreadable[ref.path] = result
                else:
                    rows[ref.path] = len(rows)
                    pixels[rows[ref.path]] = result
                if progress is not None:
                    progress(done, len(refs))
        pixels.flush()
        write_json(partial / "index.json", {"rows": rows, "unreadable": unreadable})


def read_square(dataset: Dataset, ref: ImageRef, size: int) -> NDArray[np.uint8]:
    """Read one image of a dataset as the model sees it.

    Raises:
        InputError: if the file is missing, broken or no radiograph.
    """
    from radweave.data.reading.images import read_radiograph
    from radweave.data.transforms import to_square

    radiograph = read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh)
    return to_square(radiograph.pixels, size)
