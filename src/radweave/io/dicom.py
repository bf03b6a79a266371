"""DICOM images: header values, and the display pipeline from stored values to grey levels.

    stored values -> modality LUT or rescale -> VOI LUT or window -> [0, 1], white is dense

Order and formulas are those of PS3.3 Sec. C.7.6.3, C.11.1 and C.11.2. A separate process parses the file.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from radweave.core.errors import InputError
from radweave.core.study import Record, View
from radweave.io import worker
from radweave.io.sandbox import Sandbox, sandbox

# Integrity of decoded images. A radiograph is smooth, while a corrupt JPEG 2000 frame decodes to noise or blocks
# without an error. The measure is von Neumann's ratio, mean squared difference of neighbours over twice the variance
# (J. von Neumann, Ann. Math. Statist. 12:367, 1941): about 0 for a smooth image, 1 for noise.
DOUBTFUL: Final = "image integrity doubtful: "
NO_CHEST: Final = "not a chest: "
# 700 real radiographs reach 0.034 at most, small and strongly compressed ones among them.
NOISE_RATIO: Final = 0.15
MIN_GREY_LEVELS: Final = 24
SAMPLED_LINES: Final = 512
"""Approximate number of sampled rows; more give the same result."""
# Over 3,047 real frontal views the middle is from -0.09 to 0.55 brighter than both sides, 0.29 in most; over 2,937
# lateral views, where the measure means nothing, four are below -0.25.
INVERTED_FRONTAL: Final = -0.10
INVERTED_UNKNOWN: Final = -0.25


def integrity_warnings(pixels: NDArray[np.float32]) -> list[str]:
    """Warnings for an image (H, W) in [0, 1]; each begins with ``DOUBTFUL``."""
    warnings = []
    if max(roughness(pixels)) > NOISE_RATIO:
        warnings.append(DOUBTFUL + "it looks like noise or a pattern, not like a radiograph")
    step = _step(len(pixels))
    for rows in (pixels[:: 16 * step], pixels[::step], pixels):  # few rows of most images have enough of them
        levels = np.count_nonzero(np.bincount((rows * 255).astype(np.uint8).reshape(-1), minlength=256))
        if levels >= MIN_GREY_LEVELS:
            break
    else:
        warnings.append(DOUBTFUL + f"it has only {levels} grey levels")
    return warnings


def roughness(pixels: NDArray[np.float32]) -> tuple[float, float]:
    """Von Neumann's ratio down and along the rows, over evenly sampled rows."""
    step = _step(len(pixels))
    rows, below = pixels[::step], pixels[1::step]
    variance = _mean_square(rows - rows.mean())
    if variance == 0:
        return 0.0, 0.0
    down, along = below - rows[: len(below)], np.diff(rows, axis=1)
    return _mean_square(down) / (2 * variance), _mean_square(along) / (2 * variance)


def _mean_square(values: NDArray[np.float32]) -> float:
    return float(np.vdot(values, values)) / values.size


def _step(lines: int) -> int:
    return max(1, lines // SAMPLED_LINES)


def polarity_warnings(pixels: NDArray[np.float32], view: View) -> list[str]:
    """A warning if black and white seem swapped, as by a wrong photometric tag. Pixels stay."""
    limit = INVERTED_FRONTAL if view.is_frontal else INVERTED_UNKNOWN
    if view is View.LATERAL or spine_over_lungs(pixels) >= limit:
        return []
    return ["black and white may be swapped: the middle is darker than both sides"]


def spine_over_lungs(pixels: NDArray[np.float32]) -> float:
    """Mean of the middle, where spine and heart lie, minus mean of both sides, where the lungs lie."""
    height, width = pixels.shape

    def mean(top: float, bottom: float, left: float, right: float) -> float:
        rows = slice(int(height * top), int(height * bottom))
        return float(pixels[rows, int(width * left) : int(width * right)].mean())

    return mean(0.25, 0.75, 0.45, 0.55) - (mean(0.25, 0.55, 0.18, 0.38) + mean(0.25, 0.55, 0.62, 0.82)) / 2


FloatImage = NDArray[np.float32]

READ_TIMEOUT_S: Final = 30.0
MAX_PIXEL_BYTES: Final = 1 << 30
# Without a window, an image that fills at least this share of its declared range is shown over all of that range.
FULL_RANGE_SHARE: Final = 0.5
STRETCH_PERCENTILES: Final = (0.1, 99.9)


class PixelRefusal(Record):
    """Reason why the pixels of a readable file are not available."""

    reason: str
    field: str | None = None
    got: str | None = None
    expected: str | None = None


class LutShape(Record):
    """``first``: stored value of the first entry; ``bits``: depth of the entries."""

    first: int
    bits: int


class DicomHeader(Record):
    """Header values as numbers and known codes; "?" stands for a code that DICOM does not define.

    ``*_key`` are beginnings of SHA-256 digests, for grouping. Spacings are (row, column); positions and orientations
    are in the patient's coordinates, LPS, in mm. ``patient_orientation`` says where rows and columns run to, in letters
    of A, P, R, L, H, F. ``anatomy`` is the part of the body by all fields that name one. ``doubts`` are signs of damage
    in the compressed data; ``invalid`` names the fields that are there but cannot be used.
    """

    transfer_syntax: str | None
    transfer_syntax_name: str
    modality: str | None
    photometric: str | None
    image_types: tuple[str, ...]
    sop_class: str | None
    body_part: str | None
    view: str | None
    rows: int | None
    columns: int | None
    samples: int | None
    frames: int | None
    bits_allocated: int | None
    bits_stored: int | None
    high_bit: int | None
    signed: bool
    lut_shape: str | None
    padding: float | None
    padding_limit: float | None
    slope: float | None
    intercept: float | None
    rescale_type: str | None
    window_centers: tuple[float, ...]
    window_widths: tuple[float, ...]
    voi_function: str | None
    pixel_spacing_mm: tuple[float, ...] | None
    imager_spacing_mm: tuple[float, ...] | None
    pixel_aspect: tuple[float, ...] | None
    position_lps_mm: tuple[float, ...] | None
    orientation_lps: tuple[float, ...] | None
    gantry_tilt_deg: float | None
    for_processing: bool
    burned_in: bool
    study_key: str | None
    series_key: str | None
    sop_key: str | None
    frame_key: str | None
    patient_key: str | None
    modality_lut: LutShape | None
    voi_lut: LutShape | None
    pixel_refusal: PixelRefusal | None
    doubts: tuple[str, ...] = Field(default=())
    invalid: tuple[str, ...] = Field(default=())
    identity_keys: tuple[str, ...] = Field(default=())
    laterality: str | None = None
    patient_orientation: tuple[str, ...] = ()
    anatomy: Literal["chest", "partly", "other", "conflict"] | None = None


@dataclass(frozen=True, slots=True)
class DicomImage:
    """A parsed file. ``pixels`` are the stored values, (rows, columns) with frames before and samples after."""

    path: Path
    header: DicomHeader
    pixels: worker.Array | None
    modality_lut: worker.Array | None
    voi_lut: worker.Array | None

    def stored_pixels(self) -> worker.Array:
        """The stored values.

        Raises:
            InputError: with the reason if there are none.
        """
        if self.pixels is None:
            refusal = self.header.pixel_refusal or PixelRefusal(reason="was read without its pixels")
            raise InputError(
                refusal.reason, file=self.path, field=refusal.field, got=refusal.got, expected=refusal.expected
            )
        return self.pixels


def read_dicom(
    path: Path, *, pixels: bool = True, max_pixel_bytes: int = MAX_PIXEL_BYTES, pool: Sandbox | None = None
) -> DicomImage:
    """Parse a DICOM file in the sandbox.

    Raises:
        InputError: if it is no DICOM file, is damaged, or harms the process that reads it.
    """
    header, arrays = (pool or sandbox()).call(
        "dicom",
        {"path": str(path.absolute()), "pixels": pixels, "max_pixel_bytes": max_pixel_bytes},
        timeout_s=READ_TIMEOUT_S,
        max_reply_bytes=max_pixel_bytes + (1 << 20),
    )
    try:
        parsed = DicomHeader.model_validate(header)
    except ValidationError:
        raise InputError("the reader gave no sensible answer", file=path) from None
    return DicomImage(path, parsed, arrays.get("pixels"), arrays.get("modality_lut"), arrays.get("voi_lut"))


_MAX_HEADERS: Final = 4096
_headers: dict[tuple[int, ...], DicomHeader] = {}
_headers_lock = threading.Lock()


def read_header(path: Path) -> DicomHeader:
    """The header of a DICOM file without its pixels; unchanged files are parsed once, also after a rename.

    Raises:
        InputError: as ``read_dicom``.
    """
    try:
        status = path.stat()
    except OSError:
        return read_dicom(path, pixels=False).header
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    header = _headers.get(version)
    if header is None:
        header = read_dicom(path, pixels=False).header
        with _headers_lock:
            while len(_headers) >= _MAX_HEADERS:
                del _headers[next(iter(_headers))]
            _headers[version] = header
    return header


def part_warnings(header: DicomHeader) -> list[str]:
    """A warning if the header names another part of the body; known codes only, since free text may name a patient."""
    part = header.body_part or "?"
    if header.anatomy == "other":
        stated = "a description names another part of the body" if part == "?" else f"the body part is {part}"
        return [NO_CHEST + stated]
    if header.anatomy == "conflict":
        return [NO_CHEST + "the header names different parts of the body"]
    if header.anatomy == "partly":
        return [f"shows a chest in part: the body part is {'another than the chest' if part == '?' else part}"]
    if header.anatomy is None and header.body_part == "?":
        return ["not stated to be a chest: the body part is another than the chest"]
    return []


def identity_keys(path: Path, salt: str) -> frozenset[str]:
    """Salted digests of the words in a header that name a person or a record; empty for an unreadable file."""
    try:
        request = {"path": str(path.absolute()), "pixels": False, "salt": salt}
        header, _ = sandbox().call("dicom", request, timeout_s=READ_TIMEOUT_S)
        return frozenset(DicomHeader.model_validate(header).identity_keys)
    except (InputError, ValidationError):
        return frozenset()


def display(image: DicomImage) -> tuple[FloatImage, list[str]]:
    """The displayed image, float32 in [0, 1] with white dense, and warnings about assumptions.

    Raises:
        InputError: if there are no pixels or they do not form one grey image.
    """
    header = image.header
    warnings: list[str] = []
    stored = significant_bits(image.stored_pixels(), header)
    padding = padding_mask(stored, header)
    values = modality_values(image, stored, warnings)
    shown = _voi(image, values, padding, warnings)
    if header.photometric == "MONOCHROME1":
        shown = 1.0 - shown
    if padding is not None:
        shown[padding] = 0.0
    if header.lut_shape == "INVERSE" and header.photometric == "MONOCHROME2":
        warnings.append("PresentationLUTShape INVERSE contradicts MONOCHROME2; the photometric interpretation is used")
    return np.ascontiguousarray(shown, dtype=np.float32), warnings


def significant_bits(stored: worker.Array, header: DicomHeader) -> worker.Array:
    """The stored bits of the allocated ones (PS3.5 Sec. 8.1.1); overlays may use the other bits."""
    bits = header.bits_stored or stored.dtype.itemsize * 8
    high = header.high_bit if header.high_bit is not None else bits - 1
    allocated = stored.dtype.itemsize * 8
    if bits >= allocated or not bits - 1 <= high < allocated:
        return stored
    shift = high - (bits - 1)
    words = stored.astype(np.int64)
    words = (words >> shift) & ((1 << bits) - 1)
    if header.signed:
        words = np.where(words >= 1 << (bits - 1), words - (1 << bits), words)
    return words.astype(np.int32)


def padding_mask(stored: worker.Array, header: DicomHeader) -> NDArray[np.bool_] | None:
    """True where a pixel is padding (PS3.3 C.7.5.1.1.2), not image; None if there is none or it would be everything."""
    if header.padding is None:
        return None
    limit = header.padding if header.padding_limit is None else header.padding_limit
    low, high = min(header.padding, limit), max(header.padding, limit)
    mask: NDArray[np.bool_] = (stored >= low) & (stored <= high)
    return mask if mask.any() and not mask.all() else None


def modality_values(image: DicomImage, stored: worker.Array, warnings: list[str]) -> FloatImage:
    """Values by the modality LUT, else by slope and intercept (PS3.3 C.11.1.1); warns of unusable ones."""
    header = image.header
    if header.modality_lut is not None and image.modality_lut is not None:
        return lookup(stored, image.modality_lut, header.modality_lut.first)
    slope, intercept = rescale_of(header, warnings)
    values: FloatImage = stored.astype(np.float32)
    if slope != 1:
        values *= np.float32(slope)
    if intercept:
        values += np.float32(intercept)
    return values


def rescale_of(header: DicomHeader, warnings: list[str]) -> tuple[float, float]:
    """Slope and intercept of an image without a modality LUT; 1 and 0 with a warning if unusable."""
    for field in ("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept"):
        if field in header.invalid:
            warnings.append(f"{field} cannot be used; the stored values are taken as they are")
    slope = 1.0 if header.slope is None else header.slope
    if slope == 0:
        warnings.append("RescaleSlope is 0; the stored values are taken as they are")
        slope = 1.0
    if slope < 0:
        warnings.append("RescaleSlope is negative")
    return slope, header.intercept or 0.0


def lookup(values: worker.Array, table: worker.Array, first: int) -> FloatImage:
    """Entries of a table whose first entry stands for ``first``; values outside take the nearest entry."""
    index = np.clip(np.rint(values).astype(np.int64) - first, 0, len(table) - 1)
    entries: FloatImage = table.astype(np.float32)[index]
    return entries


def _voi(image: DicomImage, values: FloatImage, padding: NDArray[np.bool_] | None, warnings: list[str]) -> FloatImage:
    header = image.header
    if header.voi_lut is not None and image.voi_lut is not None:
        return lookup(values, image.voi_lut, header.voi_lut.first) / np.float32((1 << header.voi_lut.bits) - 1)
    if "VOILUTSequence" in header.invalid:
        warnings.append("VOILUTSequence cannot be used")
    if header.window_centers and header.window_widths:
        shown = window(values, header.window_centers[0], header.window_widths[0], header.voi_function or "LINEAR")
        if shown is not None:
            if float(np.ptp(shown)) > 0 or float(np.ptp(values)) == 0:
                return shown
            warnings.append("the window of the header shows nothing of this image; it is not used")
        else:
            warnings.append("WindowWidth is too small to be used")
    elif "WindowCenter" in header.invalid or "WindowWidth" in header.invalid:
        warnings.append("WindowCenter and WindowWidth cannot be used")
    return without_window(values, declared_range(image), padding, warnings)


def window(values: FloatImage, center: float, width: float, function: str = "LINEAR") -> FloatImage | None:
    """VOI window to [0, 1] (PS3.3 C.11.2.1.2 and C.11.2.1.3); None where the width is not allowed."""
    if function == "SIGMOID":
        if width <= 0:
            return None
        # SciPy's ``expit`` is seven times slower here and differs in the last bit of every sixth value.
        exponent = np.clip(-4.0 * (values - np.float32(center)) / np.float32(width), -80.0, 80.0)
        sigmoid: FloatImage = (1.0 / (1.0 + np.exp(exponent))).astype(np.float32)
        return sigmoid
    if function == "LINEAR_EXACT":
        if width <= 0:
            return None
        scaled = (values - np.float32(center)) / np.float32(width) + np.float32(0.5)
    else:
        if width < 1:
            return None
        if width == 1:
            step: FloatImage = (values > center - 0.5).astype(np.float32)
            return step
        scaled = (values - np.float32(center - 0.5)) / np.float32(width - 1) + np.float32(0.5)
    linear: FloatImage = np.clip(scaled, 0.0, 1.0).astype(np.float32)
    return linear


def without_window(
    values: FloatImage, declared: tuple[float, float], padding: NDArray[np.bool_] | None, warnings: list[str]
) -> FloatImage:
    """An image without a window, scaled by ``range_without_window``."""
    low, high = range_without_window(values, declared, padding, warnings)
    shown: FloatImage = np.clip((values - np.float32(low)) / np.float32(max(high - low, 1e-6)), 0.0, 1.0)
    return shown


def range_without_window(
    values: FloatImage, declared: tuple[float, float], padding: NDArray[np.bool_] | None, warnings: list[str]
) -> tuple[float, float]:
    """The declared range of an image that fills it well, else the range that it is stretched over.

    The used share of the range does not depend on the bit depth, so that 8, 10, 12 and 16 bit versions of an image look
    the same, and an 8-bit DICOM looks like its PNG.
    """
    valid = values if padding is None else values[~padding]
    low, high = (float(v) for v in np.percentile(valid, STRETCH_PERCENTILES))
    if high - low < FULL_RANGE_SHARE * (declared[1] - declared[0]):
        warnings.append("brings no window and uses little of its range; stretched between the 0.1 and 99.9 percentile")
        if high <= low:
            low, high = float(valid.min()), float(valid.max())
        return low, high
    return declared


def declared_range(image: DicomImage) -> tuple[float, float]:
    """The range of values that the header allows, after the modality step."""
    header = image.header
    if header.modality_lut is not None and image.modality_lut is not None:
        return 0.0, float((1 << header.modality_lut.bits) - 1)
    bits = header.bits_stored or 16
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if header.signed else (0, (1 << bits) - 1)
    slope, intercept = header.slope or 1.0, header.intercept or 0.0
    ends = (low * slope + intercept, high * slope + intercept)
    return min(ends), max(ends)
