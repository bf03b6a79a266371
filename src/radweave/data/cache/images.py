"""Decoded images, once: a memory-mapped array of squares beside an index, or one memory-mapped file per CT scan.

    cache = build_cache(dataset, size=128)
    cache.pixels[cache.rows["images/a.png"]]      # (128, 128) uint8
    cache = build_cache(dataset, size=128, ct=CtPreprocessing(size=(32, 64, 64), fit="resize"))
    cache.pixels[cache.rows["images/a.nii.gz"]]   # (32, 64, 64) uint8

A cache is found by the manifest, the preprocessing and the code that reads images. Whenever it is opened, the stamps of
all image files are compared with those at their reading, and what it keeps is checked where its own files were touched:
what differs is read again. An image that cannot be read is listed with the reason: it costs its study alone.
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
from radweave.data.cache import ct as prepared_scans
from radweave.data.cache import squares
from radweave.data.cache.arrays import TRIES
from radweave.data.cache.ct import ScanRows, fill_scans, find_scans
from radweave.data.cache.parts import Part, remove_parts
from radweave.data.cache.squares import Found, fill_squares, find_squares, made_by
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset

Progress = Callable[[int, int], None]
NAMES: Final[dict[Modality, str]] = {"xray": "radiographs", "ct": "CT volumes"}
LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PixelCache:
    """``pixels`` (N, size, size) or (N, D, H, W) uint8; ``rows`` path -> row; ``unreadable`` path -> reason.

    ``digest`` is a hash of all pixels and their paths, ``sums`` are checksums of the rows where they are kept.
    """

    pixels: NDArray[np.uint8] | ScanRows
    rows: dict[str, int]
    unreadable: dict[str, str]
    digest: str = ""
    sums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartMade:
    """How many images a part has, and path -> reason of those that cannot be read.

    It is not needed where the cache is whole already.
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
    """Open the cache of a dataset at this size; read what is not there, has changed since, or was damaged.

    ``ct`` with a size asks for scans prepared so; without, for radiographs as squares of ``size``. The cache lies in
    ``DATASET/.cache``, or in a temporary folder that goes with the process where the dataset cannot be written.
    ``note`` is told in one line when something was read again.

    Raises:
        InputError: if the data set holds images of the other modality, or of both, or they change all the time.
        CannotWriteError: if there is no place for temporary files either.
    """
    scans = ct if ct is not None and ct.size is not None else None
    modality: Modality = "xray" if scans is None else "ct"
    refuse_other(dataset, modality)
    folder = dataset.path / ".cache" / cache_key(dataset, size, scans)
    found = _find(dataset, folder, size, scans)
    for _ in range(TRIES):
        if found.is_whole and not found.is_touched:
            break
        refs = _references(dataset, modality)
        try:
            with one_at_a_time(folder):
                found = _find(dataset, folder, size, scans)  # another process may have filled it meanwhile
                _tell(found, folder, len(refs), note)
                _mend(dataset, refs, folder, size, scans, found, progress)
        except CannotWriteError as error:
            if found.is_whole:
                break
            note(f"the data set's cache cannot be used ({error.reason}): its images are read for this command alone")
            folder = temporary_folder("cache") / folder.name
            _mend(dataset, refs, folder, size, scans, found, progress)
        found = _find(dataset, folder, size, scans)
    if found.index is None or not found.is_whole:
        raise InputError("image files change while they are read", file=dataset.path)
    remove_parts(folder)
    return PixelCache(found.pixels, found.index.rows, found.index.unreadable, found.index.digest, found.index.sums)


def build_part(
    dataset: Dataset,
    part: Part,
    *,
    size: int,
    ct: CtPreprocessing | None = None,
    progress: Progress | None = None,
) -> PartMade:
    """Read a part of the images beside the cache, for ``build_cache`` to find; a part that was stopped goes on.

    Parts may be made at the same time by processes on other machines that see the same disk. A part that ends when the
    whole cache is there is removed.

    Raises:
        InputError: as ``build_cache``.
        CannotWriteError: if the data set's cache cannot be written.
    """
    scans = ct if ct is not None and ct.size is not None else None
    modality: Modality = "xray" if scans is None else "ct"
    refuse_other(dataset, modality)
    folder = dataset.path / ".cache" / cache_key(dataset, size, scans)
    refs = _references(dataset, modality)
    if _find(dataset, folder, size, scans).is_whole:
        return PartMade(0, {}, is_needed=False)
    with one_at_a_time(part.place(folder)):
        if _find(dataset, folder, size, scans).is_whole:  # another process may have made it meanwhile
            return PartMade(0, {}, is_needed=False)
        if scans is None:
            unreadable = squares.fill_part(dataset, refs, folder, size, part, progress)
        else:
            unreadable = prepared_scans.fill_part(dataset, refs, folder, scans, part, progress)
    if _find(dataset, folder, size, scans).is_whole:  # who made it left this part in peace
        remove_parts(folder)
    return PartMade(len(part.cut(refs)), unreadable)


def cache_key(dataset: Dataset, size: int, scans: CtPreprocessing | None) -> str:
    """Name of the cache's folder: a hash of all that decides its pixels but the image files."""
    shape = {"size": size} if scans is None else {"ct": scans.model_dump(mode="json")}
    return sha256_json({"manifest": dataset.fingerprint(), **made_by(), **shape})[:16]


def _find(dataset: Dataset, folder: Path, size: int, scans: CtPreprocessing | None) -> Found:
    return find_squares(dataset, folder, size) if scans is None else find_scans(dataset, folder, scans)


def _mend(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    size: int,
    scans: CtPreprocessing | None,
    found: Found,
    progress: Progress | None,
) -> None:
    """Read what is missing. Of files that were touched and found as they were, note the stamps."""
    if found.index is not None and found.is_whole:
        write_json(folder / "index.json", found.index.model_copy(update={"kept": found.kept}).model_dump())
    elif scans is None:
        fill_squares(dataset, refs, folder, size, found, progress)
    else:
        fill_scans(dataset, refs, folder, scans, found, progress)


def _tell(found: Found, folder: Path, images: int, note: Callable[[str], None]) -> None:
    """Say what is read again; the first reading is no news."""
    if found.stale:
        note(f"{len(found.stale)} of {images} cached images are read again: their files or the cache changed since")
    elif found.index is None and folder.exists():
        note("the cache of decoded images is damaged: it is made again")


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
