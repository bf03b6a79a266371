"""Preprocessed scans on disk, memory-mapped, so that a scan is read and resampled once.

A cached scan is found again by the content of its file and the options; a change of either makes a new one. Files
are written aside and renamed, so that two processes may fill one folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from radweave.data.ct import CtPreprocessing, preprocess
from radweave.data.reading.series import series_files
from radweave.data.reading.volumes import read_volume
from radweave.errors import InputError
from radweave.storage import sha256_file, sha256_json, write_aside

FORMAT: Final = 1
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
            InputError: as ``read_volume``.
        """
        place = self.place(path)
        if not place.is_file():
            self._write(place, path)
        try:
            return self._open(place)
        except (ValueError, EOFError, OSError):  # cut or foreign: make it anew, once
            self._write(place, path)
            return self._open(place)

    def place(self, path: Path) -> Path:
        """Where the scan of ``path`` lies or will lie."""
        key = sha256_json([FORMAT, content_sha256(path), self._options.model_dump(mode="json"), self._depth])
        return self._folder / key[:2] / f"{key}.npy"

    def _write(self, place: Path, path: Path) -> None:
        scan: NDArray[np.int16] | NDArray[np.uint8] = preprocess(read_volume(path), self._options)
        if self._depth == "uint8":
            low, high = self._options.window_hu
            scan = np.rint((scan.astype(np.float32) - low) * (255.0 / (high - low))).astype(np.uint8)
        with write_aside(place) as partial, partial.open("wb") as file:
            np.lib.format.write_array(file, scan, allow_pickle=False)

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
