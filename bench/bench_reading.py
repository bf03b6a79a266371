"""What reading in a separate process costs, against the same parser in this process.

    python bench/bench_reading.py

Files are made here. Rounds are interleaved; the figure to look at is the difference of the medians, per file.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, JPEGBaseline8Bit, RLELossless, generate_uid

from radweave.io.dicom_parse import parse_dicom
from radweave.io.raster_parse import parse_raster
from radweave.io.sandbox import Sandbox

ROUNDS = 7
REPEATS = 20
LIMITS = {"max_side_px": 16_384, "max_pixels": 1 << 26}


def picture(size: int) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    noise = np.random.default_rng(0).normal(0, 2, (size, size))
    return np.clip(128 + 90 * np.cos(2 * x) * np.cos(y) + noise, 0, 255).astype(np.uint8)


def dicom(path: Path, size: int, syntax: UID = ExplicitVRLittleEndian) -> Path:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = UID("1.2.840.10008.5.1.4.1.1.1"), ExplicitVRLittleEndian
    ds = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    ds.SOPClassUID = meta.MediaStorageSOPClassUID
    ds.SOPInstanceUID = meta.MediaStorageSOPInstanceUID = generate_uid()
    ds.Modality, ds.PhotometricInterpretation, ds.SamplesPerPixel = "CR", "MONOCHROME2", 1
    ds.Rows = ds.Columns = size
    ds.BitsAllocated = ds.BitsStored = 8
    ds.HighBit, ds.PixelRepresentation = 7, 0
    ds.PixelData = picture(size).tobytes()
    ds["PixelData"].VR = "OB"
    if syntax == JPEGBaseline8Bit:
        buffer = io.BytesIO()
        Image.fromarray(picture(size)).save(buffer, "JPEG", quality=90)
        ds.PixelData, meta.TransferSyntaxUID = encapsulate([buffer.getvalue()]), syntax
        ds["PixelData"].is_undefined_length = True
    elif syntax != ExplicitVRLittleEndian:
        ds.compress(syntax)
    ds.save_as(path, enforce_file_format=True)
    return path


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        work()
    return (time.perf_counter() - start) / REPEATS * 1000


def main() -> None:
    pool = Sandbox(size=1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        Image.fromarray(picture(512)).save(root / "512.png")
        cases: dict[str, tuple[str, dict[str, object], Callable[[dict[str, object]], object]]] = {
            "DICOM 64, header and pixels": ("dicom", {"path": str(dicom(root / "a.dcm", 64))}, parse_dicom),
            "DICOM 1024, uncompressed": ("dicom", {"path": str(dicom(root / "b.dcm", 1024))}, parse_dicom),
            "DICOM 1024, RLE": ("dicom", {"path": str(dicom(root / "c.dcm", 1024, RLELossless))}, parse_dicom),
            "DICOM 1024, JPEG": ("dicom", {"path": str(dicom(root / "d.dcm", 1024, JPEGBaseline8Bit))}, parse_dicom),
            "PNG 512": ("raster", {"path": str(root / "512.png"), **LIMITS}, parse_raster),
        }
        start = time.perf_counter()
        pool.call("dicom", {"path": str(root / "a.dcm")})
        print(f"first file, with the start of the process: {time.perf_counter() - start:.2f} s")
        print(f"{'':32}{'here':>10}{'apart':>10}{'cost':>10}   ms per file")
        for name, (task, request, parse) in cases.items():
            here, apart = [], []
            for _ in range(ROUNDS):
                here.append(milliseconds(lambda p=parse, r=request: p(r)))  # type: ignore[misc]
                apart.append(milliseconds(lambda t=task, r=request: pool.call(t, r)))  # type: ignore[misc]
            one, two = statistics.median(here), statistics.median(apart)
            print(f"{name:32}{one:10.2f}{two:10.2f}{two - one:10.2f}")
    pool.close()


if __name__ == "__main__":
    main()
