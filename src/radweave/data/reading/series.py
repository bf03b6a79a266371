"""A CT series from a folder of DICOM files (PS3.3 A.3 and C.7.6.2).

Slices are sorted by their position along the slice normal, never by file name or number. What cannot be one scan of
one patient is refused and named: two patients, two series, a missing slice, two different slices at one place.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.data.reading import wire
from radweave.data.reading.dicom import DicomHeader, DicomImage, part_warnings, read_dicom, significant_bits
from radweave.data.reading.images import sniff
from radweave.data.reading.volumes import Geometry, StoredVolume, checked, rescaled

MAX_SLICES: Final = 5000
# Positions come as decimal strings; 1 % of the gap, at least 0.01 mm, is rounding, more than half a gap is a hole.
GAP_TOLERANCE: Final = 0.01
HOLE: Final = 0.5
TILT_DEGREES: Final = 0.5


@dataclass(frozen=True, slots=True)
class Slice:
    """One parsed slice and the distance of its plane from the origin along the normal, in mm."""

    image: DicomImage
    place_mm: float


def series_files(folder: Path) -> list[Path]:
    """The DICOM files directly in ``folder``, by name.

    Raises:
        InputError: if there are none or too many.
    """
    files = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            try:
                kind = sniff(path)
            except InputError:
                continue
            if kind == "dicom":
                files.append(path)
    if not files:
        raise InputError("holds no DICOM files", file=folder)
    if len(files) > MAX_SLICES:
        raise InputError("holds too many DICOM files", file=folder, got=len(files), expected=f"at most {MAX_SLICES}")
    return files


def read_series(folder: Path) -> StoredVolume:
    """Read the one CT series of a folder.

    Raises:
        InputError: naming what keeps the files from being one complete scan.
    """
    files = series_files(folder)
    with ThreadPoolExecutor(max_workers=4) as threads:
        images = list(threads.map(read_dicom, files))
    warnings: list[str] = []
    images = _axial(images, folder, warnings)
    _one_scan(images, folder)
    normal = _normal(images[0].header, images[0].path)
    slices = _without_repeats(_sorted(images, normal), folder, warnings)
    geometry = _geometry(slices, normal, folder, warnings)
    shear = _shear(slices, normal, folder, warnings)
    values = _stack(slices)
    first = images[0].header
    if first.modality is None:
        warnings.append("no modality: the header does not say that it is CT")
    if first.rescale_type not in (None, "HU"):
        warnings.append("RescaleType does not say that the values are HU")
    warnings += dict.fromkeys(text for image in images for text in part_warnings(image.header))
    volume = StoredVolume(
        values, geometry, "dicom", first.modality, tuple(warnings), first.study_key, first.patient_key, shear
    )
    return checked(volume, folder)


def no_slice(header: DicomHeader) -> InputError | None:
    """The reason why a file is no CT slice, judged by its header; None if it is one."""
    if header.modality not in (None, "CT"):
        got = "a modality that DICOM does not define" if header.modality == "?" else header.modality
        return InputError("is not CT", field="Modality", got=got, expected="CT")
    if (header.frames or 1) > 1:
        return InputError(
            "holds several frames; only single slices are read", field="NumberOfFrames", got=header.frames
        )
    if (header.samples or 1) > 1 or header.photometric not in ("MONOCHROME1", "MONOCHROME2"):
        return InputError("is not a grey image", field="PhotometricInterpretation")
    for field, value, count in (
        ("ImagePositionPatient", header.position_lps_mm, 3),
        ("ImageOrientationPatient", header.orientation_lps, 6),
        ("PixelSpacing", header.pixel_spacing_mm, 2),
    ):
        if value is None or len(value) != count:
            return _no_geometry(header, field)
    if header.pixel_spacing_mm is not None and min(header.pixel_spacing_mm) <= 0:
        return InputError("is not positive", field="PixelSpacing", got=header.pixel_spacing_mm)
    for field, number in (("RescaleSlope", header.slope), ("RescaleIntercept", header.intercept)):
        if number is None:
            how = "is not a number" if field in header.invalid else "is missing"
            return InputError(f"{how}, so the values cannot be turned into Hounsfield units", field=field)
    if header.slope == 0:
        return InputError("is 0", field="RescaleSlope")
    return None


def _no_geometry(header: DicomHeader, field: str) -> InputError:
    """Without its place an image that says CT may be anything; a radiograph with a wrong tag is the usual case."""
    if header.modality == "CT" and (header.sop_class is None or "CT " not in header.sop_class):
        kind = "no SOP class" if header.sop_class is None else f"SOP class {header.sop_class}"
        return InputError(
            f"says CT, but the file has no usable {field} and {kind}: the modality may be wrong",
            field="Modality", got="CT",
        )  # fmt: skip
    return InputError("is missing or cannot be used", field=field)


def _axial(images: list[DicomImage], folder: Path, warnings: list[str]) -> list[DicomImage]:
    pictures = [image for image in images if image.header.rows is not None]
    if len(pictures) < len(images):
        warnings.append(f"{len(images) - len(pictures)} files without an image left out")
    kept = [image for image in pictures if "LOCALIZER" not in image.header.image_types]
    if len(kept) < len(pictures):
        warnings.append(f"{len(pictures) - len(kept)} localizer images left out")
    for image in kept:
        reason = no_slice(image.header)
        if reason is not None:
            raise InputError(
                reason.reason, file=image.path, field=reason.field, got=reason.got, expected=reason.expected
            )
    if len(kept) < 2:
        raise InputError("holds fewer than two CT slices, which is no volume", file=folder, got=len(kept))
    return kept


def _one_scan(images: list[DicomImage], folder: Path) -> None:
    headers = [image.header for image in images]
    patients = {h.patient_key for h in headers if h.patient_key is not None}
    if len(patients) > 1:
        raise InputError(
            "holds files of several patients", file=folder, got=f"{len(patients)} patients", expected="one"
        )
    uids = (
        ("studies", {h.study_key for h in headers if h.study_key is not None}),
        ("series", {h.series_key for h in headers if h.series_key is not None}),
        ("frames of reference", {h.frame_key for h in headers if h.frame_key is not None}),
    )
    for what, keys in (
        *uids,
        ("image sizes", {(h.rows, h.columns) for h in headers}),
        ("pixel spacings", {_rounded(h.pixel_spacing_mm) for h in headers}),
        ("orientations", {_rounded(h.orientation_lps) for h in headers}),
    ):
        if len(keys) > 1:
            raise InputError(f"mixes several {what}", file=folder, got=len(keys), expected="one")
    repeated = [key for key, count in Counter(h.sop_key for h in headers if h.sop_key).items() if count > 1]
    for key in repeated:
        same = [image for image in images if image.header.sop_key == key]
        if any(not np.array_equal(same[0].stored_pixels(), other.stored_pixels()) for other in same[1:]):
            raise InputError("two files claim to be the same image but hold different pixels", file=same[1].path,
                             field="SOPInstanceUID")  # fmt: skip


def _rounded(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(round(v, 3) for v in values)


def _normal(header: DicomHeader, path: Path) -> NDArray[np.float64]:
    assert header.orientation_lps is not None
    row, column = np.array(header.orientation_lps[:3]), np.array(header.orientation_lps[3:])
    normal = np.cross(row, column)
    if abs(np.linalg.norm(row) - 1) > 0.01 or abs(np.linalg.norm(column) - 1) > 0.01 or np.linalg.norm(normal) < 0.99:
        raise InputError("is not two unit vectors at a right angle", file=path, field="ImageOrientationPatient")
    return np.asarray(normal / np.linalg.norm(normal))


def slice_direction(header: DicomHeader) -> tuple[float, ...]:
    """Direction matrix (3 x 3, row-major) of one slice: its columns are the row, the column and the normal axis."""
    normal = _normal(header, Path())
    row, column = np.array((header.orientation_lps or ())[:3]), np.array((header.orientation_lps or ())[3:])
    return tuple(float(v) + 0.0 for v in np.stack([row, column, normal], axis=1).reshape(-1))


def _sorted(images: list[DicomImage], normal: NDArray[np.float64]) -> list[Slice]:
    slices = [Slice(image, float(np.dot(image.header.position_lps_mm or (0, 0, 0), normal))) for image in images]
    return sorted(slices, key=lambda item: item.place_mm)


def _without_repeats(slices: list[Slice], folder: Path, warnings: list[str]) -> list[Slice]:
    """Drop a slice that is there twice; refuse two different ones at one place."""
    kept = [slices[0]]
    for item in slices[1:]:
        if item.place_mm - kept[-1].place_mm > 1e-3:
            kept.append(item)
        elif not np.array_equal(item.image.stored_pixels(), kept[-1].image.stored_pixels()):
            raise InputError("two different slices lie at one position", file=item.image.path,
                             field="ImagePositionPatient")  # fmt: skip
    if len(kept) < len(slices):
        warnings.append(f"duplicated slices: {len(slices) - len(kept)} left out")
    if len(kept) < 2:
        raise InputError("holds only one distinct slice, which is no volume", file=folder)
    return kept


def _geometry(slices: list[Slice], normal: NDArray[np.float64], folder: Path, warnings: list[str]) -> Geometry:
    header = slices[0].image.header
    assert header.position_lps_mm is not None
    assert header.pixel_spacing_mm is not None
    places = np.array([item.place_mm for item in slices])
    gaps = np.diff(places)
    usual = float(np.median(gaps))
    holes = int((np.rint(gaps / usual) - 1)[gaps > (1 + HOLE) * usual].sum())
    if holes:
        raise InputError("slices are missing", file=folder, got=f"{holes} missing of {len(slices) + holes}")
    if float(np.abs(gaps - usual).max()) > max(0.01, GAP_TOLERANCE * usual):
        warnings.append(f"slice gaps are not uniform: {gaps.min():.3f} to {gaps.max():.3f} mm; their mean is used")
    step = float((places[-1] - places[0]) / (len(places) - 1))
    x, y, z = header.position_lps_mm
    return Geometry(
        (header.pixel_spacing_mm[1], header.pixel_spacing_mm[0], step),
        (x, y, z),
        slice_direction(header),
    )


def _shear(slices: list[Slice], normal: NDArray[np.float64], folder: Path, warnings: list[str]) -> tuple[float, float]:
    """Shift of each slice against the one before, in mm along rows and columns, if the gantry was tilted.

    Raises:
        InputError: if the slices are shifted unevenly, so that no tilt explains it.
    """
    header = slices[0].image.header
    axes = np.array(header.orientation_lps).reshape(2, 3)
    positions = np.array([item.image.header.position_lps_mm for item in slices])
    places = np.array([item.place_mm for item in slices]) - slices[0].place_mm
    drift = (positions - positions[0]) @ axes.T
    slope = drift[-1] / places[-1]
    tilt = float(np.degrees(np.arctan(np.linalg.norm(slope))))
    if float(np.abs(drift - places[:, None] * slope).max()) > min(header.pixel_spacing_mm or (1.0,)):
        raise InputError("slices are shifted unevenly against each other", file=folder, field="ImagePositionPatient")
    stated = header.gantry_tilt_deg or 0.0
    if tilt <= TILT_DEGREES:
        if abs(stated) > TILT_DEGREES:
            warnings.append(f"the header states a gantry tilt of {stated:.1f} degrees, but the slices are not shifted")
        return 0.0, 0.0
    warnings.append(f"gantry tilt of {tilt:.1f} degrees; the slices are shifted back")
    step = places[-1] / (len(places) - 1)
    return float(slope[0] * step), float(slope[1] * step)


def _stack(slices: list[Slice]) -> wire.Array:
    """Values (z, y, x) with each slice's own slope and intercept."""
    planes = [slice_values(item.image) for item in slices]
    kind = np.result_type(*planes)
    return np.stack([plane.astype(kind, copy=False) for plane in planes])


def slice_values(image: DicomImage) -> wire.Array:
    """Hounsfield units of one slice, (rows, columns) (PS3.3 C.11.1.1.2)."""
    stored = significant_bits(image.stored_pixels(), image.header)
    return rescaled(stored, image.header.slope, image.header.intercept, image.path)
