"""Decoded images, once: a memory-mapped array of squares beside an index, or one memory-mapped file per CT scan.

    cache = build_cache(dataset, size=128)
    cache.pixels[cache.rows["images/a.png"]]      # (128, 128) uint8
    cache = build_cache(dataset, size=128, ct=CtPreprocessing(size=(32, 64, 64), fit="resize"))
    cache.pixels[cache.rows["images/a.nii.gz"]]   # (32, 64, 64) uint8

The cache is keyed by the manifest and the preprocessing, so a changed data set or size makes a new one. An image that
cannot be read is listed with the reason; it costs its study, never the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from radweave.data.ct import CtPreprocessing
from radweave.data.ct_cache import ScanRows
from radweave.data.dataset import Dataset
from radweave.data.scans import are_there, fill_scans, open_scans
from radweave.errors import InputError
from radweave.storage import read_json, sha256_json, write_folder, write_json
from radweave.types import ImageRef, Modality

Progress = Callable[[int, int], None]
NAMES: Final[dict[Modality, str]] = {"xray": "radiographs", "ct": "CT volumes"}


@dataclass(frozen=True, slots=True)
class PixelCache:
    """``pixels`` (N, size, size) or (N, D, H, W) uint8; ``rows`` path -> row; ``unreadable`` path -> reason."""

    pixels: NDArray[np.uint8] | ScanRows
    rows: dict[str, int]
    unreadable: dict[str, str]


def build_cache(
    dataset: Dataset, *, size: int, ct: CtPreprocessing | None = None, progress: Progress | None = None
) -> PixelCache:
    """Open the cache of a dataset at this size; decode every image where there is none yet.

    ``ct`` with a size asks for scans prepared so; without, for radiographs as squares of ``size``. The cache lies in
    ``DATASET/.cache``, or in a temporary folder when the dataset cannot be written.

    Raises:
        InputError: if the data set holds images of the other modality, or of both.
    """
    scans = ct if ct is not None and ct.size is not None else None
    modality: Modality = "xray" if scans is None else "ct"
    refuse_other(dataset, modality)
    key = sha256_json(_identity(dataset, size, scans))[:16]
    folder = dataset.path / ".cache" / key
    if not _is_there(folder, scans):
        refs = _references(dataset, modality)
        try:
            _fill(dataset, refs, folder, size, scans, progress)
        except (InputError, PermissionError):
            folder = Path(mkdtemp(prefix="radweave-cache-")) / key
            _fill(dataset, refs, folder, size, scans, progress)
    index = read_json(folder / "index.json")
    pixels: NDArray[np.uint8] | ScanRows
    if scans is None or scans.size is None:
        pixels = np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False)
    else:
        pixels = open_scans(folder, index, scans.size)
    return PixelCache(pixels=pixels, rows=index["rows"], unreadable=index["unreadable"])


def _identity(dataset: Dataset, size: int, scans: CtPreprocessing | None) -> dict[str, Any]:
    from radweave.data.transforms import PREPROCESSING_VERSION

    shape = {"size": size} if scans is None else {"ct": scans.model_dump(mode="json")}
    return {"manifest": dataset.fingerprint(), "version": PREPROCESSING_VERSION, **shape}


def _is_there(folder: Path, scans: CtPreprocessing | None) -> bool:
    return (folder / "index.json").is_file() if scans is None else are_there(folder)


def _fill(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    scans: CtPreprocessing | None,
    progress: Progress | None,
) -> None:
    if scans is None:
        _decode_all(dataset, refs, folder, size, progress)
    else:
        fill_scans(dataset, refs, folder, scans, progress)


def refuse_other(dataset: Dataset, wanted: Modality) -> None:
    """Refuse a data set of a modality that the experiment does not prepare.

    Raises:
        InputError: naming the data set and what to set.
    """
    found = dataset.card.modality
    if found == wanted:
        return
    hint = "data.ct.size=null" if wanted == "ct" else "a size in voxels, such as data.ct.size=[32,64,64]"
    raise InputError(
        f"the data set holds {NAMES[found]}, the experiment prepares {NAMES[wanted]}",
        file=dataset.path,
        field="data.ct.size",
        got="a size" if wanted == "ct" else "none",
        expected=hint,
    )


def _references(dataset: Dataset, wanted: Modality) -> list[ImageRef]:
    """Every image of the data set once.

    Raises:
        InputError: if one is of another modality.
    """
    refs = list({ref.path: ref for study in dataset.studies() for ref in study.images}.values())
    others = sum(ref.modality != wanted for ref in refs)
    if others:
        raise InputError(
            "the data set mixes radiographs and CT volumes; make one data set of each",
            file=dataset.manifest_path,
            field="images.modality",
            got=f"{others} of {len(refs)} images are not '{wanted}'",
            expected="one modality, the one that dataset.json states",
        )
    return refs


def _decode_all(dataset: Dataset, refs: Sequence[ImageRef], folder: Path, size: int, progress: Progress | None) -> None:
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
