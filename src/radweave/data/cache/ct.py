"""Preprocessed scans on disk, memory-mapped, so that a scan is read and resampled once.

A cached scan is found again by the content of its file and the options; a change of either makes a new one. A file
that is replaced between its hashing and its reading is read again. What is made is written aside and renamed, so that
two processes may fill one folder, and a job that was stopped goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file, sha256_json
from radweave.base.storage import write_aside
from radweave.data.cache.arrays import TRIES, stamp
from radweave.data.cache.index import made_by
from radweave.data.ct import CtPreprocessing, preprocess, to_bytes
from radweave.data.reading.series import series_files
from radweave.data.reading.volumes import read_volume

FORMAT: Final = 2
"""Of the files: an array, and behind it the SHA-256 of all before."""
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
        place, scan = self.find(path)
        if scan is not None:
            self.store(place, scan)
        return self._open(place)

    def find(self, path: Path) -> tuple[Path, NDArray[np.int16] | NDArray[np.uint8] | None]:
        """Where the scan of ``path`` lies, or, prepared now, the place where it is to be stored.

        Raises:
            InputError: as ``read_volume``, or if the file changes whenever it is read.
            ValueError: as ``preprocess``.
        """
        for _ in range(TRIES):
            # Stamps tell of a file that was replaced and put back, its hash of a replacement that the clock missed.
            before, place = stamp(path), self.place(path)
            if self.is_whole(place):  # neither new nor cut nor foreign
                return place, None
            scan = self.prepare(path)
            if self.place(path) == place and stamp(path) == before:
                return place, scan
        raise InputError("image changes while it is read", file=path)

    def is_whole(self, place: Path) -> bool:
        """Whether a cached scan lies at ``place``, with all the bytes that were written."""
        try:
            self._open(place)
            data = place.read_bytes()
        except (ValueError, EOFError, OSError):
            return False
        return hashlib.sha256(data[:-SUM_BYTES]).digest() == data[-SUM_BYTES:]

    def place(self, path: Path) -> Path:
        """Where the scan of ``path`` lies or will lie."""
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

    def store(self, place: Path, scan: NDArray[np.int16] | NDArray[np.uint8]) -> None:
        """Write a prepared scan, whole or not at all.

        Raises:
            CannotWriteError: if it cannot be written.
        """
        array = BytesIO()
        np.lib.format.write_array(array, scan, allow_pickle=False)
        data = array.getbuffer()
        with write_aside(place) as partial, partial.open("wb") as file:
            file.write(data)
            file.write(hashlib.sha256(data).digest())

    def _open(self, place: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        scan = np.load(place, mmap_mode="r", allow_pickle=False)
        if scan.dtype.name != self._depth or scan.ndim != 3:
            raise ValueError("not a cached scan")
        return np.asarray(scan) if not isinstance(scan, np.memmap) else scan

    def unit(self, scan: NDArray[np.int16] | NDArray[np.uint8]) -> NDArray[np.float32]:
        """A cached scan as float32 in [-1, 1]."""
        if scan.dtype == np.uint8:
            return scan.astype(np.float32) * np.float32(2 / 255) - np.float32(1)
        low, high = self._options.window_hu
        return (scan.astype(np.float32) - np.float32((high + low) / 2)) / np.float32((high - low) / 2)


@dataclass(frozen=True, slots=True)
class ScanRows:
    """Cached scans of one shape (D, H, W), uint8, read by row like an array (N, D, H, W).

    A scan is mapped into memory when it is asked for and let go with what was asked, so no number of scans fills it.
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
    """Hash of a file, or of the DICOM files of a folder whatever they are called.

    Raises:
        InputError: if it is missing.
    """
    if path.is_dir():
        digests = sorted(sha256_file(file) for file in series_files(path))
        return hashlib.sha256("".join(digests).encode()).hexdigest()
    if not path.is_file():
        raise InputError("file is missing", file=path)
    return sha256_file(path)
