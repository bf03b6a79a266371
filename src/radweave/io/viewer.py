"""Pixels for a viewer: all grey levels, the windows of the file, the original size; and the viewer's script.

    read = read_words(Path("chest.dcm"))
    read.words                    # uint16 (rows, columns)
    read.about["presets"][0]      # the window that the file asks for

A word w stands for the value (``first`` + w) * ``slope`` + ``intercept``, computed in single precision, which is what
the modality step of PS3.3 C.11.1 gives; ``padding`` is the word of pixels that are no image. Files are parsed in the
limited child process; here is arithmetic on arrays only.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from radweave.core.study import View
from radweave.io import dicom, images, worker
from radweave.io.dicom import DicomHeader, DicomImage, FloatImage
from radweave.io.images import one_file
from radweave.io.volumes import Volume, read_volume

Words = NDArray[np.uint16]

PADDING: Final = 65_535
COMPRESSION: Final = 1
"""Grey noise hardly shrinks; a higher level takes three times as long for a few hundredths."""
TABLE, LINEAR, LINEAR_EXACT = "TABLE", "LINEAR", "LINEAR_EXACT"
AS_FILE_ASKS, WHOLE_RANGE, TABLE_NAME = "as the file asks", "range of the image", "table of the file"
SCAN_PRESETS: Final = (
    {"name": "lung", "center": -600.0, "width": 1500.0},
    {"name": "mediastinum", "center": 40.0, "width": 400.0},
    {"name": "bone", "center": 400.0, "width": 1800.0},
)


@dataclass(frozen=True, slots=True)
class Read:
    """``words`` (rows, columns), what they stand for as JSON values, and the file's VOI table where it has one."""

    words: Words
    about: dict[str, Any]
    table: Words | None = None


def read_words(path: Path, *, original_size_wh: tuple[int, int] | None = None) -> Read:
    """Read a radiograph.

    ``original_size_wh`` is its width and height before it was stored stretched: the words are not stretched back,
    ``pixel_ratio`` (height by width of a pixel) tells how to show them.

    Raises:
        InputError: if it is no single grey radiograph, or cannot be read.
    """
    with one_file(path):
        if images.sniff(path) == "dicom":
            read = _of_dicom(dicom.read_dicom(path, max_pixel_bytes=4 * images.MAX_PIXELS))
        else:
            read = _of_raster(path)
    if original_size_wh is None:
        return read
    rows, columns = read.words.shape
    ratio = (original_size_wh[1] / original_size_wh[0]) / (rows / columns)
    return Read(read.words, {**read.about, "spacing_mm": None, "pixel_ratio": ratio}, read.table)


def _of_dicom(image: DicomImage) -> Read:
    header = image.header
    refusal = images.no_radiograph(header)
    if refusal is not None:
        raise refusal
    warnings: list[str] = []
    stored = dicom.significant_bits(image.stored_pixels(), header)
    padding = dicom.padding_mask(stored, header)
    slope, intercept = 1.0, 0.0
    if header.modality_lut is not None and image.modality_lut is not None:
        numbers: worker.Array = dicom.modality_values(image, stored, warnings).astype(np.int64)
    else:
        numbers = stored
        slope, intercept = dicom.rescale_of(header, warnings)
    spacing, notes = images.radiograph_spacing(header)
    about: dict[str, Any] = {
        "bits": header.bits_stored, "photometric": header.photometric,
        "inverted": header.photometric == "MONOCHROME1", "view": header.view or View.UNKNOWN.value,
        "laterality": header.laterality, "orientation": list(header.patient_orientation), "spacing_mm": spacing,
        "pixel_ratio": _pixel_ratio(header, spacing), "source": "dicom",
    }  # fmt: skip
    words, scale = _packed(numbers, padding, slope, intercept)
    about |= scale
    about["presets"] = _presets(image, words, about, warnings)
    about["warnings"] = [*images.header_warnings(header), *notes, *warnings]
    table = None if image.voi_lut is None else image.voi_lut.astype(np.uint16)
    return Read(words, {"rows": words.shape[0], "columns": words.shape[1], **about}, table)


def _of_raster(path: Path) -> Read:
    raster = images.read_raster(path)
    warnings: list[str] = []
    grey = images.upright_grey(path, raster, warnings)
    words, scale = _packed(grey, None, 1.0, 0.0)
    about = {
        "rows": words.shape[0], "columns": words.shape[1], "bits": 8 * grey.dtype.itemsize, "photometric": None,
        "inverted": False, "view": View.UNKNOWN.value, "laterality": None, "orientation": [], "spacing_mm": None,
        "pixel_ratio": 1.0, "source": raster.source, **scale,
    }  # fmt: skip
    declared = (0.0, 255.0 if grey.dtype == np.uint8 else 65_535.0)
    low, high = declared
    if grey.dtype != np.uint8:
        low, high = dicom.range_without_window(grey.astype(np.float32), declared, None, warnings)
    about["presets"] = [_between(WHOLE_RANGE, low, high)]
    about["warnings"] = [*warnings, *raster.doubts]
    return Read(words, about)


def _packed(
    numbers: worker.Array, padding: NDArray[np.bool_] | None, slope: float, intercept: float
) -> tuple[Words, dict[str, Any]]:
    """Whole numbers as words from their minimum on. More levels than words can hold are brought to as many."""
    valid = numbers if padding is None else numbers[~padding]
    first, last = int(valid.min()), int(valid.max())
    most = PADDING if padding is None else PADDING - 1
    shifted = numbers.astype(np.int64) - first
    if last - first > most:
        step = (last - first) / most
        shifted, slope, intercept, first = np.rint(shifted / step), slope * step, intercept + slope * first, 0
    if padding is not None:
        shifted[padding] = PADDING
    words = np.ascontiguousarray(shifted, dtype="<u2")
    scale = {"first": first, "slope": slope, "intercept": intercept, "padding": None if padding is None else PADDING}
    return words, scale


def values_of(words: Words, about: Mapping[str, Any]) -> FloatImage:
    """Values of words after the modality step."""
    values = (words.astype(np.int64) + int(about["first"])).astype(np.float32)
    scaled: FloatImage = values * np.float32(about["slope"]) + np.float32(about["intercept"])
    return scaled


def _presets(image: DicomImage, words: Words, about: dict[str, Any], warnings: list[str]) -> list[dict[str, Any]]:
    """The windows to choose from; the first is how ``dicom.display`` shows the image."""
    header, presets = image.header, []
    levels = np.flatnonzero(np.bincount(words.reshape(-1))).astype(np.uint16)
    padding = None if about["padding"] is None else words == about["padding"]
    values = values_of(levels if padding is None else levels[levels != about["padding"]], about)
    if header.voi_lut is not None and image.voi_lut is not None:
        presets.append(
            {"name": TABLE_NAME, "function": TABLE, "first": header.voi_lut.first, "bits": header.voi_lut.bits}
        )
    function = header.voi_function if header.voi_function in (LINEAR_EXACT, "SIGMOID") else LINEAR
    for center, width in zip(header.window_centers, header.window_widths, strict=False):
        shown = dicom.window(values, center, width, function)
        if shown is None or (np.ptp(shown) == 0 and np.ptp(values) > 0):
            warnings.append("a window of the file cannot be used")
            continue
        name = AS_FILE_ASKS if len(header.window_centers) == 1 else f"{AS_FILE_ASKS} ({len(presets) + 1})"
        presets.append({"name": name, "function": function, "center": center, "width": width})
    low, high = dicom.range_without_window(values_of(words, about), dicom.declared_range(image), padding, [])
    return [*presets, _between(WHOLE_RANGE, low, high)]


def _between(name: str, low: float, high: float) -> dict[str, Any]:
    width = max(high - low, 1e-6)
    return {"name": name, "function": LINEAR_EXACT, "center": low + width / 2, "width": width}


def _pixel_ratio(header: DicomHeader, spacing: tuple[float, float] | None) -> float:
    """Height by width of a pixel; 1 where nothing usable is stated."""
    pair = spacing or header.pixel_aspect
    return pair[0] / pair[1] if pair and len(pair) == 2 and min(pair) > 0 and max(pair) < 20 * min(pair) else 1.0


def read_scan(path: Path) -> tuple[Volume, dict[str, Any]]:
    """Read a CT scan, and say what it is.

    Raises:
        InputError: as ``read_volume``.
    """
    volume = read_volume(path)
    z, y, x = volume.hu.shape
    about = {
        "shape_zyx": [z, y, x], "spacing_zyx_mm": list(volume.spacing_mm), "affine_ras": affine_ras(volume).tolist(),
        "source": volume.source, "warnings": list(volume.warnings),
    }  # fmt: skip
    return volume, about


def affine_ras(volume: Volume) -> NDArray[np.float64]:
    """From the place of a voxel (x, y, z) to mm to the right, to the front, to the head (NIfTI)."""
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.geometry.affine()


def write_nifti(values: NDArray[np.int16] | NDArray[np.uint8], affine: NDArray[np.float64], file: IO[bytes]) -> None:
    """Write (z, y, x) values as a gzipped NIfTI-1 file, slice by slice."""
    import nibabel

    z, y, x = values.shape
    header = nibabel.Nifti1Header()
    header.set_data_dtype(values.dtype)
    header.set_data_shape((x, y, z))
    header.set_sform(affine, code="scanner")
    header.set_qform(affine, code="scanner")
    header.set_xyzt_units("mm")
    header["magic"], header["vox_offset"], header["scl_slope"] = b"n+1", 352, 1
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed:
        packed.write(header.binaryblock + b"\0" * 4)
        for plane in values:  # the first axis of NIfTI runs fastest, as the last one here does
            packed.write(np.ascontiguousarray(plane, dtype=plane.dtype.newbyteorder("<")).tobytes())


def nifti_bytes(values: NDArray[np.int16] | NDArray[np.uint8], affine: NDArray[np.float64]) -> bytes:
    """As ``write_nifti``, for what is small."""
    buffer = io.BytesIO()
    write_nifti(values, affine, buffer)
    return buffer.getvalue()


def write_words(words: Words, file: IO[bytes]) -> None:
    """Write words, row by row from the top, little-endian, gzipped."""
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=COMPRESSION, mtime=0) as packed:
        packed.write(np.ascontiguousarray(words, dtype="<u2").tobytes())
