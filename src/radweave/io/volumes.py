"""CT volumes from NIfTI, NRRD, MetaImage and DICOM series, in Hounsfield units.

    stored = read_stored(Path("scan.nii.gz"))      # as the file has it, geometry as ITK states it
    volume = read_volume(Path("series_folder"))    # in the fixed orientation

Coordinates are LPS in mm (x to the patient's left, y to the back, z to the head). Arrays are (z, y, x).
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import ndimage

from radweave.core.config import AIR_HU
from radweave.core.errors import InputError
from radweave.core.study import Record
from radweave.io import worker
from radweave.io.dicom import DOUBTFUL, NO_CHEST, DicomHeader, DicomImage, part_warnings, read_dicom, significant_bits
from radweave.io.images import one_file, sniff
from radweave.io.sandbox import sandbox

VolumeSource = Literal["nifti", "nrrd", "metaimage", "dicom"]

READ_TIMEOUT_S: Final = 120.0
MAX_HU: Final = 31_000
MIN_SPAN_HU: Final = 1.0
"""Least span of values; a smaller one rounds to one value."""
# Of slope and intercept: beyond it, no stored value but 0 is a Hounsfield unit.
MAX_SCALE: Final = 1e6
MAX_ANISOTROPY: Final = 8.0
OBLIQUE_DEGREES: Final = 1.0
# Axes of a direction matrix may lean this much (cosine) before the volume counts as sheared.
SKEW_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Geometry:
    """Positions of the voxels: spacing and origin (x, y, z) in mm, and the direction matrix.

    ``direction`` is 3 x 3, row-major, LPS; its columns are the directions of the x, y and z axis of the array.
    """

    spacing_xyz_mm: tuple[float, float, float]
    origin_lps: tuple[float, float, float]
    direction: tuple[float, ...]

    @classmethod
    def of(cls, spacing: NDArray[Any], origin: NDArray[Any], matrix: NDArray[Any]) -> Geometry:
        """From arrays (3,), (3,) and (3, 3)."""
        (sx, sy, sz), (x, y, z) = map(float, spacing), map(float, origin)
        return cls((sx, sy, sz), (x, y, z), tuple(float(v) + 0.0 for v in matrix.reshape(-1)))

    def matrix(self) -> NDArray[np.float64]:
        return np.array(self.direction, dtype=np.float64).reshape(3, 3)

    def affine(self) -> NDArray[np.float64]:
        """From voxels (x, y, z, 1) to mm, LPS: (4, 4)."""
        affine = np.eye(4)
        affine[:3, :3] = self.matrix() * np.array(self.spacing_xyz_mm)
        affine[:3, 3] = self.origin_lps
        return affine


@dataclass(frozen=True, slots=True)
class StoredVolume:
    """A volume as its file has it, with slope and intercept applied. ``values`` is (z, y, x) of the stored axes.

    ``shear_xy_mm`` is how far each slice is shifted against the one before along x and y (gantry tilt); ``geometry``
    leaves it out, as ITK does. ``patient_key`` and ``study_key`` are digests, for grouping, as in ``Radiograph``.
    """

    values: worker.Array
    geometry: Geometry
    source: VolumeSource
    modality: str | None
    warnings: tuple[str, ...]
    study_key: str | None = None
    patient_key: str | None = None
    shear_xy_mm: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Volume:
    """A CT scan: ``hu`` int16 (z, y, x), from feet to head, front to back, the patient's right to left.

    Values below -1024 HU (padding outside the scanner's field) are set to -1024. ``spacing_mm`` is (z, y, x).
    """

    hu: NDArray[np.int16]
    spacing_mm: tuple[float, float, float]
    geometry: Geometry
    source: VolumeSource
    warnings: tuple[str, ...]
    study_key: str | None = None
    patient_key: str | None = None


_H = TypeVar("_H", bound=Record)
_Vector = tuple[float | None, float | None, float | None]
_Row4 = tuple[float | None, float | None, float | None, float | None]


class _NiftiHeader(Record):
    affine_ras: tuple[_Row4, _Row4, _Row4, _Row4] | None
    qform_ras: tuple[_Row4, _Row4, _Row4, _Row4] | None
    pixdim_mm: _Vector
    units: str
    slope: float | None
    intercept: float | None
    doubts: tuple[str, ...]


class _AxesHeader(Record):
    """Geometry of NRRD and MetaImage: a vector for each axis of the array, or spacings alone."""

    space_known: bool
    directions_lps: tuple[_Vector, _Vector, _Vector] | None
    origin_lps: _Vector | None
    spacings_mm: _Vector | None
    doubts: tuple[str, ...]


def read_volume(path: Path) -> Volume:
    """Read a CT scan and bring it into the fixed orientation.

    Raises:
        InputError: if it is no 3D volume, is damaged, mixes series or patients, misses slices, or has no usable
            geometry.
    """
    return to_standard(read_stored(path), path)


def read_stored(path: Path) -> StoredVolume:
    """Read a volume as the file has it.

    Raises:
        InputError: as ``read_volume``.
    """
    with one_file(path):
        if path.is_dir():
            return read_series(path)
        kind = sniff(path)
        if kind in ("nifti", "gzip"):
            return _from_nifti(*_parsed("nifti", _NiftiHeader, path), path)
        if kind in ("nrrd", "metaimage"):
            return _from_axes(*_parsed(kind, _AxesHeader, path), path, kind)
        if kind == "dicom":
            raise InputError("is a single DICOM file; give the folder of the series", file=path)
        expected = "NIfTI, NRRD, MetaImage or a DICOM folder"
        raise InputError(f"is a {kind.upper()} image, not a volume", file=path, expected=expected)


def _parsed(task: str, kind: type[_H], path: Path) -> tuple[_H, worker.Array]:
    header, arrays = sandbox().call(task, {"path": str(path.absolute())}, timeout_s=READ_TIMEOUT_S)
    try:
        return kind.model_validate(header[task]), arrays["values"]
    except (ValidationError, KeyError):
        raise InputError("the header cannot be used: its geometry is not that of a 3D volume", file=path) from None


def _from_nifti(header: _NiftiHeader, values: worker.Array, path: Path) -> StoredVolume:
    """Geometry as NIfTI-1 states it: sform, else qform, else the voxel sizes alone; RAS turned into LPS."""
    warnings = [DOUBTFUL + doubt for doubt in header.doubts]
    pixdim = header.pixdim_mm
    if header.affine_ras is None:
        if any(v is None or v <= 0 for v in pixdim):
            raise InputError("voxel sizes are missing or not positive", file=path, field="pixdim", got=pixdim)
        warnings.append("states no orientation; taken as right to left, back to front, feet to head")
        affine = np.diag([*pixdim, 1.0]).astype(np.float64)
    else:
        affine = _matrix(header.affine_ras, path, "sform or qform")
        if any(v is None or v <= 0 for v in pixdim):
            warnings.append("pixdim is not positive; the voxel sizes of the affine are used")
        if header.qform_ras is not None:
            other = _matrix(header.qform_ras, path, "qform")
            if not np.allclose(affine, other, atol=0.1 * float(np.abs(affine[:3, :3]).max())):
                warnings.append("sform and qform disagree; sform is used")
    if header.units not in ("mm", "unknown"):
        raise InputError("is not in mm", file=path, field="xyzt_units", got=header.units)
    to_lps = np.diag([-1.0, -1.0, 1.0, 1.0])
    geometry = _geometry((to_lps @ affine)[:3, :3], (to_lps @ affine)[:3, 3], path, warnings)
    values = rescaled(values, header.slope, header.intercept, path)
    return checked(StoredVolume(values, geometry, "nifti", None, tuple(warnings)), path)


def _from_axes(
    header: _AxesHeader, values: worker.Array, path: Path, source: Literal["nrrd", "metaimage"]
) -> StoredVolume:
    warnings = [DOUBTFUL + doubt for doubt in header.doubts]
    if header.directions_lps is not None:
        columns = np.array([[np.nan if v is None else v for v in row] for row in header.directions_lps]).T
        if columns.shape != (3, 3) or not np.isfinite(columns).all():
            raise InputError("cannot be used", file=path, field="space directions")
        if not header.space_known:
            warnings.append("states no known space; taken as left, posterior, superior")
    else:
        spacings = header.spacings_mm
        if spacings is None or len(spacings) != 3 or any(v is None or v <= 0 for v in spacings):
            raise InputError("are missing or not positive", file=path, field="spacings", got=spacings)
        warnings.append("states no orientation; taken as left, posterior, superior")
        columns = np.diag(spacings)
    origin = header.origin_lps or [0.0, 0.0, 0.0]
    if any(v is None for v in origin):
        raise InputError("cannot be used", file=path, field="space origin")
    geometry = _geometry(columns, np.array(origin, dtype=np.float64), path, warnings)
    return checked(StoredVolume(values, geometry, source, None, tuple(warnings)), path)


def _matrix(rows: tuple[_Row4, ...], path: Path, field: str) -> NDArray[np.float64]:
    matrix = np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
        raise InputError("is not a finite 4 x 4 matrix", file=path, field=field)
    return matrix


def _geometry(columns: NDArray[np.float64], origin: NDArray[np.float64], path: Path, warnings: list[str]) -> Geometry:
    """Split columns (mm per voxel along x, y, z) into spacing and direction.

    Raises:
        InputError: if an axis has no length or two axes fall together.
    """
    spacing = np.linalg.norm(columns, axis=0)
    if (spacing < 1e-4).any() or (spacing > 1e3).any():
        raise InputError("voxel size is not usable", file=path, got=tuple(round(float(v), 6) for v in spacing))
    direction = columns / spacing
    determinant = float(np.linalg.det(direction))
    if abs(determinant) < 0.5:
        raise InputError("the axes do not span space: the affine is singular", file=path, got=f"{determinant:.3g}")
    skew = np.abs(direction.T @ direction - np.eye(3)).max()
    if skew > SKEW_TOLERANCE:
        warnings.append(
            f"the axes are not at right angles (off by {np.degrees(np.arcsin(min(skew, 1.0))):.1f} degrees)"
        )
    return Geometry.of(spacing, origin, direction)


def rescaled(values: worker.Array, slope: float | None, intercept: float | None, path: Path) -> worker.Array:
    """Apply slope and intercept; the type stays whole where both and the values are whole numbers.

    Raises:
        InputError: if they are larger than any scanner's, or turn dark into bright.
    """
    slope, intercept = (slope if slope else 1.0), intercept or 0.0
    if not (abs(slope) <= MAX_SCALE and abs(intercept) <= MAX_SCALE):
        raise InputError("slope or intercept cannot be used", file=path, got=f"{slope:g} and {intercept:g}",
                         expected=f"at most {MAX_SCALE:g}")  # fmt: skip
    if slope < 0:
        raise InputError("the slope is negative: air would be denser than bone", file=path, got=f"{slope:g}")
    if slope == 1 and intercept == 0:
        return values
    if values.dtype.kind in "iu" and slope == int(slope) and intercept == int(intercept):
        exact = values.astype(np.int64) * int(slope) + int(intercept)
        info = np.iinfo(np.int16)
        small = exact.size and info.min <= exact.min() and exact.max() <= info.max
        return exact.astype(np.int16 if small else np.int32)
    return np.asarray(values.astype(np.float64) * slope + intercept)


def checked(volume: StoredVolume, path: Path) -> StoredVolume:
    """Look at the values: NaN, constant, odd shapes.

    Raises:
        InputError: if most values are no numbers, or all are equal.
    """
    warnings = list(volume.warnings)
    values = volume.values
    if values.dtype.kind == "f":
        bad = int(values.size - np.isfinite(values).sum())
        if bad > values.size // 2:
            raise InputError(
                "holds no numbers: most voxels are NaN or infinite", file=path, got=f"{bad} of {values.size}"
            )
        if bad:
            warnings.append(f"{bad} voxels are NaN or infinite; they are taken as air")
            values = np.where(np.isfinite(values), values, AIR_HU)
    low, high = float(values.min()), float(values.max())
    if high - low < MIN_SPAN_HU:  # by a slope near 0, say
        raise InputError("all voxels are equal: there is no image", file=path, got=f"{low:g} to {high:g}")
    spacing = volume.geometry.spacing_xyz_mm
    if max(spacing) > MAX_ANISOTROPY * min(spacing):
        warnings.append(f"voxels are {max(spacing) / min(spacing):.0f} times longer in one direction than in another")
    lean = oblique_degrees(volume.geometry)
    if lean > OBLIQUE_DEGREES:
        warnings.append(f"oblique: the axes lean {lean:.1f} degrees from the patient's")
    return replace(volume, values=values, warnings=tuple(warnings))


def _assignment(direction: NDArray[np.float64]) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """For each patient axis (x, y, z) the array axis that follows it best, and its sign; a permutation."""
    weights = np.abs(direction)
    best: tuple[float, tuple[int, int, int]] = (-1.0, (0, 1, 2))
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        best = max(best, (float(sum(weights[axis, order[axis]] for axis in range(3))), order))
    order = best[1]
    signs = tuple(1 if direction[axis, order[axis]] >= 0 else -1 for axis in range(3))
    return order, (signs[0], signs[1], signs[2])


def oblique_degrees(geometry: Geometry) -> float:
    """Largest angle between an axis of the array and the patient's axis nearest to it."""
    direction = geometry.matrix()
    order, signs = _assignment(direction)
    cosines = [direction[axis, order[axis]] * signs[axis] for axis in range(3)]
    return float(np.degrees(np.arccos(np.clip(min(cosines), -1.0, 1.0))))


def to_standard(stored: StoredVolume, path: Path) -> Volume:
    """Turn and mirror the array so that x, y, z run to the patient's left, back and head.

    No voxel is resampled, but for a gantry tilt, which is undone by shifting the slices.

    Raises:
        InputError: if the values are no Hounsfield units by their size.
    """
    with one_file(path):
        return _turned(stored, path)


def _turned(stored: StoredVolume, path: Path) -> Volume:
    low, high = float(stored.values.min()), float(stored.values.max())
    if high > MAX_HU or low < -MAX_HU:
        raise InputError("values are outside what Hounsfield units can be", file=path, got=f"{low:g} to {high:g}")
    direction = stored.geometry.matrix()
    order, signs = _assignment(direction)
    spacing = np.array(stored.geometry.spacing_xyz_mm)
    xyz = without_shear(stored).transpose(2, 1, 0)
    origin = np.array(stored.geometry.origin_lps)
    for axis in range(3):
        if signs[axis] < 0:
            source = order[axis]
            origin = origin + direction[:, source] * spacing[source] * (xyz.shape[source] - 1)
    turned = xyz.transpose(order)[tuple(slice(None, None, sign) for sign in signs)]
    columns = direction[:, list(order)] * np.array(signs)
    hu = np.clip(turned, AIR_HU, MAX_HU) if turned.dtype.kind != "f" else np.rint(np.clip(turned, AIR_HU, MAX_HU))
    sizes = spacing[list(order)]
    return Volume(
        np.ascontiguousarray(hu.transpose(2, 1, 0), dtype=np.int16),
        (float(sizes[2]), float(sizes[1]), float(sizes[0])),
        Geometry.of(sizes, origin, columns),
        stored.source,
        stored.warnings,
        stored.study_key,
        stored.patient_key,
    )


def without_shear(stored: StoredVolume) -> worker.Array:
    """Values (z, y, x) with each slice shifted back to where an upright gantry would have it; linear, air outside."""
    if stored.shear_xy_mm == (0.0, 0.0):
        return stored.values
    from scipy import ndimage

    spacing = stored.geometry.spacing_xyz_mm
    per_slice = stored.shear_xy_mm[1] / spacing[1], stored.shear_xy_mm[0] / spacing[0]
    planes = [
        ndimage.shift(plane.astype(np.float32), [shift * index for shift in per_slice], order=1, cval=AIR_HU)
        for index, plane in enumerate(stored.values)
    ]
    return np.stack(planes)


# A CT series from a folder of DICOM files (PS3.3 A.3 and C.7.6.2).
#
# Slices are sorted by their position along the slice normal, never by file name or number. What cannot be one scan of
# one patient is refused and named: two patients, two series, a missing slice, two different slices at one place.


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
    geometry = _series_geometry(slices, normal, folder, warnings)
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
    slices = [image for image in pictures if "LOCALIZER" not in image.header.image_types]
    if len(slices) < len(pictures):
        warnings.append(f"{len(pictures) - len(slices)} localizer images left out")
    for image in slices:
        reason = no_slice(image.header)
        if reason is not None:
            raise InputError(
                reason.reason, file=image.path, field=reason.field, got=reason.got, expected=reason.expected
            )
    if len(slices) < 2:
        raise InputError("holds fewer than two CT slices, which is no volume", file=folder, got=len(slices))
    return slices


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
    """Drop repeated slices; refuse two different ones at one position."""
    distinct = [slices[0]]
    for item in slices[1:]:
        if item.place_mm - distinct[-1].place_mm > 1e-3:
            distinct.append(item)
        elif not np.array_equal(item.image.stored_pixels(), distinct[-1].image.stored_pixels()):
            raise InputError("two different slices lie at one position", file=item.image.path,
                             field="ImagePositionPatient")  # fmt: skip
    if len(distinct) < len(slices):
        warnings.append(f"duplicated slices: {len(slices) - len(distinct)} left out")
    if len(distinct) < 2:
        raise InputError("holds only one distinct slice, which is no volume", file=folder)
    return distinct


def _series_geometry(slices: list[Slice], normal: NDArray[np.float64], folder: Path, warnings: list[str]) -> Geometry:
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
    return Geometry((header.pixel_spacing_mm[1], header.pixel_spacing_mm[0], step), (x, y, z), slice_direction(header))


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


def _stack(slices: list[Slice]) -> worker.Array:
    """Values (z, y, x) with each slice's own slope and intercept."""
    planes = [slice_values(item.image) for item in slices]
    kind = np.result_type(*planes)
    return np.stack([plane.astype(kind, copy=False) for plane in planes])


def slice_values(image: DicomImage) -> worker.Array:
    """Hounsfield units of one slice, (rows, columns) (PS3.3 C.11.1.1.2)."""
    stored = significant_bits(image.stored_pixels(), image.header)
    return rescaled(stored, image.header.slope, image.header.intercept, image.path)


# Plausibility of a volume: Hounsfield units, and a chest.
#
# Rules over a histogram and a coarse copy of the scan; each says what it found in a warning and changes nothing.


SOFT_TISSUE_HU: Final = (-150, 120)
AIR_RANGE_HU: Final = (-1024, -850)
SHIFT_HU: Final = 1024
# Shares of all voxels. Fat, muscle and blood make a third of any trunk; bone beyond 870 HU far less than a hundredth.
MANY: Final = 0.05
FEW: Final = 0.01
MAX_LABELS: Final = 64
PADDING_GAP_HU: Final = 100

COARSE_MM: Final = 4.0
TOO_COARSE_MM: Final = 10.0
"""Wider voxels mix lung with its surroundings. Of eight phantom chests all pass the rule at 8 mm, three at 14 mm."""
TISSUE_FROM_HU: Final = -250
LUNG_HU: Final = (-965, -500)
MIN_LUNG_SHARE: Final = 0.10
NO_AIR_HU: Final = -940
CROPPED_BORDER_SHARE: Final = 0.75
SHORT_MM: Final = 100.0


def value_warnings(values: worker.Array) -> list[str]:
    """Do the values look like Hounsfield units: never rescaled, rescaled twice, or no CT at all?

    A stored CT value is usually HU + 1024. Without the rescaling, air lies at 0 and soft tissue near 1024; with it
    done twice, soft tissue lies at -1024 and air at -2024.
    """
    plain = values.reshape(-1)
    if (
        plain.dtype.kind in "iu"
        and float(plain.min()) >= 0
        and len(np.unique(plain[:: max(1, plain.size // 500_000)])) <= MAX_LABELS
    ):
        return ["looks like a label map, not like CT: no negative and few distinct values"]
    plain = _without_padding(plain)
    soft = _share(plain, *SOFT_TISSUE_HU)
    lifted = _share(plain, SOFT_TISSUE_HU[0] + SHIFT_HU, SOFT_TISSUE_HU[1] + SHIFT_HU)
    sunk = _share(plain, SOFT_TISSUE_HU[0] - SHIFT_HU, SOFT_TISSUE_HU[1] - SHIFT_HU)
    sunk_air = _share(plain, AIR_RANGE_HU[0] - SHIFT_HU, AIR_RANGE_HU[1] - SHIFT_HU)
    if _share(plain, -20_000, -200) < FEW:
        if lifted >= MANY:
            return ["HU were never rescaled: the values look like HU + 1024"]
        return ["does not look like CT in HU: no air"]
    if soft < FEW and sunk >= MANY and sunk_air >= FEW:
        return ["HU were rescaled twice: the values look like HU - 1024"]
    if soft < FEW:
        return ["does not look like CT in HU: no soft tissue"]
    return []


def _without_padding(plain: worker.Array) -> worker.Array:
    """Leave out the value that scanners write outside their round field: the minimum, often and far below the rest."""
    least = plain == plain.min()
    if float(least.mean()) < FEW or bool(least.all()):
        return plain
    rest = plain[~least]
    return rest if float(rest.min()) - float(plain.min()) > PADDING_GAP_HU else plain


def _share(values: worker.Array, low: float, high: float) -> float:
    return float(((values >= low) & (values < high)).mean())


def chest_warnings(volume: Volume) -> list[str]:
    """Does a scan in HU show a chest, and all of it?

    Lung is the one tissue between -965 and -500 HU in bulk. Where the body ends inside the image, only what it
    encloses counts, so that table, blanket and skin do not; opening by one coarse voxel removes the skin of bowel gas.
    An image whose frame is mostly filled with body or lung shows only a part. A scan whose coarse voxels are wider than
    ``TOO_COARSE_MM`` is not judged.
    """
    coarse, spacing = _coarse(volume)
    tissue = coarse > TISSUE_FROM_HU
    if max(spacing[1:]) > TOO_COARSE_MM:
        return [f"not tested whether it shows a chest: its voxels are {max(spacing[1:]):.0f} mm wide"]
    if not tissue.any():
        return [NO_CHEST + "no soft tissue"]
    frame = np.zeros(coarse.shape[1:], dtype=bool)
    frame[[0, -1], :] = True
    frame[:, [0, -1]] = True
    cropped = float((coarse[:, frame] > NO_AIR_HU).mean()) > CROPPED_BORDER_SHARE
    lung = (coarse > LUNG_HU[0]) & (coarse < LUNG_HU[1])
    if not cropped:
        lung &= np.stack([ndimage.binary_fill_holes(plane) for plane in _largest(tissue)])
    lung = ndimage.binary_opening(lung, np.ones((1, 3, 3), dtype=bool))
    share = float(lung.sum() / (lung.sum() + tissue.sum()))
    warnings = []
    if share < MIN_LUNG_SHARE:
        warnings.append(
            f"{NO_CHEST}lung makes {100 * share:.0f} % of the body, a chest has over {100 * MIN_LUNG_SHARE:.0f} %"
        )
    if cropped:
        warnings.append("cropped: the body reaches beyond the sides of the image")
    height = spacing[0] * coarse.shape[0]
    if height < SHORT_MM:
        warnings.append(f"short: covers {height:.0f} mm from feet to head")
    return warnings


def _coarse(volume: Volume) -> tuple[NDArray[np.float32], tuple[float, float, float]]:
    """Block means (z, y, x) at about ``COARSE_MM``, and their spacing."""
    shape = volume.hu.shape
    z, y, x = (min(n, max(1, round(COARSE_MM / s))) for n, s in zip(shape, volume.spacing_mm, strict=True))
    counts = shape[0] // z, shape[1] // y, shape[2] // x
    blocks = volume.hu[: counts[0] * z, : counts[1] * y, : counts[2] * x]
    blocks = blocks.reshape(counts[0], z, counts[1], y, counts[2], x)
    means = blocks.mean(axis=(1, 3, 5), dtype=np.float32)
    spacing = volume.spacing_mm
    return means, (spacing[0] * z, spacing[1] * y, spacing[2] * x)


def _largest(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    labels, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(labels.reshape(-1))
    sizes[0] = 0
    return np.asarray(labels == sizes.argmax())
