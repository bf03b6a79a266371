"""Cache of preprocessed scans, memory-mapped: each is read and resampled once.

The key of a cached scan is a hash of its file's content and the options. A file that is replaced between its hashing
and its reading is read again. Scans are written aside and renamed, so that two processes may fill one folder, and a
stopped job resumes.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.json_files import write_json
from radweave.core.storage import sha256_file, sha256_json, write_aside
from radweave.core.study import ImageRef
from radweave.data.cache.arrays import TRIES, in_order, stamp
from radweave.data.cache.parts import Part
from radweave.data.cache.squares import CacheIndex, CacheState, changed_sources, made_by, read_index
from radweave.data.ct import CtPreprocessing, preprocess, to_bytes, to_unit
from radweave.data.dataset import Dataset
from radweave.io.volumes import read_volume, series_files

FORMAT: Final = 2
"""Of the files: an array, followed by its SHA-256."""
SUM_BYTES: Final = 32
Depth = Literal["int16", "uint8"]


class CtCache:
    """A folder of preprocessed scans.

    ``depth``: int16 keeps HU; uint8 keeps the window in 256 steps and halves the space.
    """

    def __init__(self, folder: Path, options: CtPreprocessing, *, depth: Depth = "int16") -> None:
        self._folder = folder
        self._options = options
        self._depth: Depth = depth

    def get(self, path: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        """The scan of ``path`` (a file or a series folder), memory-mapped; read and preprocessed if it is new.

        Raises:
            InputError: as ``find``.
            ValueError: as ``preprocess``.
            CannotWriteError: if it cannot be written.
        """
        target, scan = self.find(path)
        if scan is not None:
            self.store(target, scan)
        return self._open(target)

    def find(self, path: Path) -> tuple[Path, NDArray[np.int16] | NDArray[np.uint8] | None]:
        """The cached file of the scan of ``path``, and the prepared scan if it must still be stored there.

        Raises:
            InputError: as ``read_volume``, or if the file changes whenever it is read.
            ValueError: as ``preprocess``.
        """
        for _ in range(TRIES):
            # Stamps reveal a file that was replaced and put back, its hash a replacement within the clock's resolution.
            before, target = stamp(path), self.path_of(path)
            if self.is_whole(target):  # neither new nor cut nor foreign
                return target, None
            scan = self.prepare(path)
            if self.path_of(path) == target and stamp(path) == before:
                return target, scan
        raise InputError("image changes while it is read", file=path)

    def is_whole(self, cached: Path) -> bool:
        """True if ``cached`` is a scan with all the bytes that were written."""
        try:
            self._open(cached)
            data = cached.read_bytes()
        except (ValueError, EOFError, OSError):
            return False
        return hashlib.sha256(data[:-SUM_BYTES]).digest() == data[-SUM_BYTES:]

    def path_of(self, path: Path) -> Path:
        """The cached file of the scan of ``path``, existing or not."""
        options = self._options.model_dump(mode="json")
        key = sha256_json([FORMAT, made_by(), content_sha256(path), options, self._depth])
        return self._folder / key[:2] / f"{key}.npy"

    def prepare(self, path: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        """Read and preprocess the scan of ``path``, without the cache.

        Raises:
            InputError: as ``read_volume``.
            ValueError: as ``preprocess``.
        """
        scan = preprocess(read_volume(path), self._options)
        return to_bytes(scan, self._options) if self._depth == "uint8" else scan

    def store(self, target: Path, scan: NDArray[np.int16] | NDArray[np.uint8]) -> None:
        """Write a prepared scan, whole or not at all.

        Raises:
            CannotWriteError: if it cannot be written.
        """
        array = BytesIO()
        np.lib.format.write_array(array, scan, allow_pickle=False)
        data = array.getbuffer()
        with write_aside(target) as partial, partial.open("wb") as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())

    def _open(self, cached: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        scan = np.load(cached, mmap_mode="r", allow_pickle=False)
        if scan.dtype.name != self._depth or scan.ndim != 3:
            raise ValueError("not a cached scan")
        return np.asarray(scan) if not isinstance(scan, np.memmap) else scan

    def unit(self, scan: NDArray[np.int16] | NDArray[np.uint8]) -> NDArray[np.float32]:
        """A cached scan as float32 in [-1, 1]."""
        if scan.dtype == np.uint8:
            return scan.astype(np.float32) * np.float32(2 / 255) - np.float32(1)
        return to_unit(cast(NDArray[np.int16], scan), self._options)


@dataclass(frozen=True, slots=True)
class ScanRows:
    """Cached scans of one shape (D, H, W), uint8, read by row like an array (N, D, H, W).

    A scan is mapped into memory on access and released with its array, so that no number of scans fills the memory.
    """

    files: Sequence[Path]
    size: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self.files), *self.size)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """The scan (D, H, W).

        Raises:
            InputError: if its file is missing or damaged.
        """
        try:
            scan: NDArray[np.uint8] = np.load(self.files[row], mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError):
            raise InputError("the cached scan is missing or damaged; remove it", file=self.files[row]) from None
        if scan.dtype != np.uint8 or scan.shape != self.size:
            raise InputError("the cached scan is damaged; remove it", file=self.files[row])
        return scan


def content_sha256(path: Path) -> str:
    """Hash of a file, or of the DICOM files of a folder regardless of their names.

    Raises:
        InputError: if it is missing.
    """
    if path.is_dir():
        digests = sorted(sha256_file(file) for file in series_files(path))
        return hashlib.sha256("".join(digests).encode()).hexdigest()
    if not path.is_file():
        raise InputError("file is missing", file=path)
    return sha256_file(path)


# The prepared scans of a data set, one memory-mapped file each, and their index.
#
# DATASET/.cache/KEY/index.json    path -> row, stamps, file of each row, unreadable scans
# DATASET/.cache/scans/ab/ab12.npy (D, H, W) uint8, by content and preprocessing, shared by all indices


SCANS = "scans"


def find_scans(dataset: Dataset, folder: Path, options: CtPreprocessing) -> CacheState:
    """The state of the cache of a data set of scans."""
    assert options.size is not None
    index = read_index(folder)
    if index is None or not len(index.rows) == len(index.files) == len(index.file_stamps):
        return CacheState()
    files = [folder.parent / SCANS / name for name in index.files]
    stamps = tuple(stamp(file) for file in files)
    cached = CtCache(folder.parent / SCANS, options, depth="uint8")
    stale = changed_sources(dataset, index)
    for path, row in index.rows.items():
        if stamps[row] != index.file_stamps[row] and not cached.is_whole(files[row]):
            stale.add(path)
    return CacheState(index, ScanRows(files, options.size), stale, file_stamps=stamps)


def fill_scans(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    options: CtPreprocessing,
    state: CacheState,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Prepare every missing scan, and write the index; a stopped job resumes.

    Raises:
        CannotWriteError: if something cannot be written.
    """
    cached = CtCache(folder.parent / SCANS, options, depth="uint8")
    rows: dict[str, int] = {}
    files: list[Path] = []
    unreadable: dict[str, str] = {}
    stamps = {ref.path: stamp(dataset.path / ref.path) for ref in refs}

    def cached_file(path: str) -> Path | str:
        assert state.index is not None
        if path in state.index.unreadable:
            return state.index.unreadable[path]
        row = state.index.rows[path]
        target = folder.parent / SCANS / state.index.files[row]
        if not target.is_file():  # the cache cannot be written and continues elsewhere
            with write_aside(target) as partial:
                shutil.copyfile(state.pixels.files[row], partial)
        return target

    def prepare(ref: ImageRef) -> Path | str:
        return cached_file(ref.path) if state.holds(ref.path) else _prepared(dataset, ref, cached)

    for done, (ref, result) in enumerate(in_order(prepare, refs), start=1):
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
        file_stamps=tuple(stamp(file) for file in files),
    )
    write_json(folder / "index.json", index.model_dump(by_alias=True))


def fill_part(
    dataset: Dataset,
    refs: Sequence[ImageRef],
    folder: Path,
    options: CtPreprocessing,
    part: Part,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, str]:
    """Prepare a part of the scans, shared by all indices; returns path -> reason of those that cannot be read.

    Raises:
        CannotWriteError: if something cannot be written.
    """
    cached, own = CtCache(folder.parent / SCANS, options, depth="uint8"), part.select(refs)
    unreadable: dict[str, str] = {}
    for done, (ref, result) in enumerate(in_order(lambda ref: _prepared(dataset, ref, cached), own), start=1):
        if isinstance(result, str):
            unreadable[ref.path] = result
        if progress is not None:
            progress(done, len(own))
    return unreadable


def _prepared(dataset: Dataset, ref: ImageRef, cached: CtCache) -> Path | str:
    """The cached file of a scan, prepared if necessary, or the reason why it cannot be read."""
    try:
        target, scan = cached.find(dataset.image_path(ref.path))
    except ValueError as error:  # unreadable scans cost their study; write errors are raised below
        return error.reason if isinstance(error, InputError) else str(error)
    if scan is not None:
        cached.store(target, scan)
    return target
