"""Cache of decoded images: one memory-mapped array of squares, or one memory-mapped file per CT scan, with an index.

    cache = build_cache(dataset, size=128)
    cache.pixels[cache.rows["images/a.png"]]      # (128, 128) uint8
    cache = build_cache(dataset, size=128, ct=CtPreprocessing(size=(32, 64, 64), fit="resize"))
    cache.pixels[cache.rows["images/a.nii.gz"]]   # (32, 64, 64) uint8

The key of a cache is a hash of the manifest, the preprocessing and the code that reads images. Opening it compares the
stamps of all image files with those at their reading, and verifies its own files if they were touched: images that
differ are read again. An image that cannot be read is listed with the reason and costs its study alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import CannotWriteError, InputError
from radweave.core.json_files import write_json
from radweave.core.storage import one_at_a_time, sha256_json, temporary_folder
from radweave.core.study import ImageRef, Modality
from radweave.data.boxes import Window
from radweave.data.cache import ct as prepared_scans
from radweave.data.cache import squares
from radweave.data.cache.arrays import TRIES
from radweave.data.cache.ct import ScanRows, fill_scans, find_scans
from radweave.data.cache.parts import Part, remove_parts
from radweave.data.cache.squares import CacheState, fill_squares, find_squares, made_by
from radweave.data.ct import CtPreprocessing, covered
from radweave.data.dataset import Dataset
from radweave.data.square import covered_by_square

Progress = Callable[[int, int], None]
NAMES: Final[dict[Modality, str]] = {"xray": "radiographs", "ct": "CT volumes"}
LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PixelCache:
    """``pixels`` (N, size, size) or (N, D, H, W) uint8; ``rows`` path -> row; ``unreadable`` path -> reason.

    ``digest`` is a hash of all pixels and their paths, ``sums`` are checksums of the rows where the cache has them.
    """

    pixels: NDArray[np.uint8] | ScanRows
    rows: dict[str, int]
    unreadable: dict[str, str]
    digest: str = ""
    sums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartResult:
    """Number of images in a part, and path -> reason of those that cannot be read.

    ``is_needed`` is False if the cache was already whole.
    """

    images: int
    unreadable: dict[str, str]
    is_needed: bool = True


def build_cache(
    dataset: Dataset,
    *,
    size: int,
    ct: CtPreprocessing | None = None,
    progress: Progress | None = None,
    note: Callable[[str], None] = LOGGER.warning,
) -> PixelCache:
    """Open the cache of a data set at this size; read images that are missing, changed or damaged.

    With a size in ``ct`` it holds scans, else radiographs as squares of ``size``. It lies in ``DATASET/.cache``, or in
    a temporary folder of the process if the data set cannot be written. ``note`` gets a line if images are read again.

    Raises:
        InputError: if the data set holds images of the other modality, or of both, or they change all the time.
        CannotWriteError: if temporary files cannot be written either.
    """
    scans, modality, folder = _layout(dataset, size, ct)
    state = _open_state(dataset, folder, size, scans)
    for _ in range(TRIES):
        if state.is_whole and not state.is_touched:
            break
        refs = _references(dataset, modality)
        try:
            with one_at_a_time(folder):
                state = _open_state(dataset, folder, size, scans)  # another process may have filled it meanwhile
                _note_reread(state, folder, len(refs), note)
                _refresh(dataset, refs, folder, size, scans, state, progress)
        except CannotWriteError as error:
            if state.is_whole:
                break
            note(f"the data set's cache cannot be used ({error.reason}): its images are read for this command alone")
            folder = temporary_folder("cache") / folder.name
            _refresh(dataset, refs, folder, size, scans, state, progress)
        state = _open_state(dataset, folder, size, scans)
    if state.index is None or not state.is_whole:
        raise InputError("image files change while they are read", file=dataset.path)
    remove_parts(folder)
    return PixelCache(state.pixels, state.index.rows, state.index.unreadable, state.index.digest, state.index.sums)


def image_window(dataset: Dataset, ref: ImageRef, *, size: int, ct: CtPreprocessing | None = None) -> Window:
    """The part of an image that its row of the cache covers, for ``radweave.data.boxes``.

    A scan that is resized as a whole is not read for it; any other image is.

    Raises:
        InputError: if the file is missing, broken or of the other modality.
    """
    from radweave.io.images import read_radiograph
    from radweave.io.volumes import read_volume

    path = dataset.image_path(ref.path)
    if ct is None or ct.size is None:
        radiograph = read_radiograph(path, original_size_wh=ref.original_size_wh, doubts=False)
        height, width = radiograph.pixels.shape
        return covered_by_square(height, width, size)
    if ct.crop == "none" and ct.fit == "resize":
        return ((0.0, 1.0),) * 3
    return covered(read_volume(path), ct)


def build_part(
    dataset: Dataset,
    part: Part,
    *,
    size: int,
    ct: CtPreprocessing | None = None,
    progress: Progress | None = None,
) -> PartResult:
    """Read a part of the images beside the cache, for ``build_cache`` to merge; a stopped part resumes.

    Processes on several machines with a shared disk may build parts at the same time. A part that ends after the whole
    cache was built is removed.

    Raises:
        InputError: as ``build_cache``.
        CannotWriteError: if the data set's cache cannot be written.
    """
    scans, modality, folder = _layout(dataset, size, ct)
    refs = _references(dataset, modality)
    if _open_state(dataset, folder, size, scans).is_whole:
        return PartResult(0, {}, is_needed=False)
    with one_at_a_time(part.path(folder)):
        if _open_state(dataset, folder, size, scans).is_whole:  # another process may have made it meanwhile
            return PartResult(0, {}, is_needed=False)
        if scans is None:
            unreadable = squares.fill_part(dataset, refs, folder, size, part, progress)
        else:
            unreadable = prepared_scans.fill_part(dataset, refs, folder, scans, part, progress)
    if _open_state(dataset, folder, size, scans).is_whole:  # its builder left this locked part alone
        remove_parts(folder)
    return PartResult(len(part.select(refs)), unreadable)


def _layout(dataset: Dataset, size: int, ct: CtPreprocessing | None) -> tuple[CtPreprocessing | None, Modality, Path]:
    """Options of scans (None for radiographs), the modality, and the cache's folder."""
    scans = ct if ct is not None and ct.size is not None else None
    modality: Modality = "xray" if scans is None else "ct"
    refuse_modality(dataset, modality)
    return scans, modality, dataset.path / ".cache" / cache_key(dataset, size, scans)


def cache_key(dataset: Dataset, size: int, scans: CtPreprocessing | None) -> str:
    """Name of the cache's folder: a hash of everything but the image files that determines its pixels."""
    shape = {"size": size} if scans is None else {"ct": scans.model_dump(mode="json")}
    return sha256_json({"manifest": dataset.fingerprint(), **made_by(), **shape})[:16]


def _open_state(dataset: Dataset, folder: Path, size: int, scans: CtPreprocessing | None) -> CacheState:
    return find_squares(dataset, folder, size) if scans is None else find_scans(dataset, folder, scans)


def _refresh(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    scans: CtPreprocessing | None,
    state: CacheState,
    progress: Progress | None,
) -> None:
    """Read missing images; if none is missing, record the stamps of touched but unchanged files."""
    if state.index is not None and state.is_whole:
        write_json(
            folder / "index.json",
            state.index.model_copy(update={"file_stamps": state.file_stamps}).model_dump(by_alias=True),
        )
    elif scans is None:
        fill_squares(dataset, refs, folder, size, state, progress)
    else:
        fill_scans(dataset, refs, folder, scans, state, progress)


def _note_reread(state: CacheState, folder: Path, images: int, note: Callable[[str], None]) -> None:
    """Report images that are read again, but not a first build."""
    if state.stale:
        note(f"{len(state.stale)} of {images} cached images are read again: their files or the cache changed since")
    elif state.index is None and folder.exists():
        note("the cache of decoded images is damaged: it is made again")


def refuse_modality(dataset: Dataset, wanted: Modality) -> None:
    """Refuse a data set of another modality than the experiment prepares.

    Raises:
        InputError: naming the data set and what to set.
    """
    modality = dataset.card.modality
    if modality == wanted:
        return
    hint = "data.ct.size=null" if wanted == "ct" else "a size in voxels, such as data.ct.size=[32,64,64]"
    raise InputError(
        f"the data set holds {NAMES[modality]}, the experiment prepares {NAMES[wanted]}",
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
