"""CT volumes from NIfTI, NRRD, MetaImage and DICOM series, in Hounsfield units.

    stored = read_stored(Path("scan.nii.gz"))      # as the file has it, geometry as ITK states it
    volume = read_volume(Path("series_folder"))    # in the one orientation that everything else here uses

Coordinates are LPS in mm (x to the patient's left, y to the back, z to the head). Arrays are (z, y, x).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from radweave.base.errors import InputError
from radweave.base.study import Record
from radweave.data.reading import wire
from radweave.data.reading.images import sniff
from radweave.data.reading.integrity import DOUBTFUL
from radweave.data.reading.one_file import one_file
from radweave.data.reading.sandbox import sandbox

VolumeSource = Literal["nifti", "nrrd", "metaimage", "dicom"]

READ_TIMEOUT_S: Final = 120.0
AIR_HU: Final = -1024
MAX_HU: Final = 31_000
MIN_SPAN_HU: Final = 1.0
"""What rounds to one value is no image."""
# Of slope and intercept: beyond it, no stored value but 0 is a Hounsfield unit.
MAX_SCALE: Final = 1e6
MAX_ANISOTROPY: Final = 8.0
OBLIQUE_DEGREES: Final = 1.0
# Axes of a direction matrix may lean this much (cosine) before the volume counts as sheared.
SKEW_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the voxels are: spacing and origin (x, y, z) in mm, and the direction matrix.

    ``direction`` is 3 x 3, row-major, LPS; its columns are the directions of the x, y and z axis of the array.
    """

    spacing_xyz_mm: tuple[float, float, float]
    origin_lps: tuple[float, float, float]
    direction: tuple[float, ...]

    def matrix(self) -> NDArray[np.float64]:
        return np.array(self.direction, dtype=np.float64).reshape(3, 3)


@dataclass(frozen=True, slots=True)
class StoredVolume:
    """A volume as its file has it, with slope and intercept applied. ``values`` is (z, y, x) of the stored axes.

    ``shear_xy_mm`` is how far each slice is shifted against the one before along x and y (gantry tilt); ``geometry``
    leaves it out, as ITK does. ``patient_key`` and ``study_key`` are digests, for grouping, as in ``Radiograph``.
    """

    values: wire.Array
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
    """What NRRD and MetaImage state: a vector for each axis of the array, or spacings alone."""

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
        return _stored(path)


def _stored(path: Path) -> StoredVolume:
    if path.is_dir():
        from radweave.data.reading.series import read_series

        return read_series(path)
    kind = sniff(path)
    if kind in ("nifti", "gzip"):
        return _from_nifti(*_parsed("nifti", _NiftiHeader, path), path)
    if kind in ("nrrd", "metaimage"):
        return _from_axes(*_parsed(kind, _AxesHeader, path), path, kind)
    if kind == "dicom":
        raise InputError("is a single DICOM file; give the folder of the series", file=path)
    raise InputError(
        f"is a {kind.upper()} image, not a volume", file=path, expected="NIfTI, NRRD, MetaImage or a DICOM folder"
    )


def _parsed(task: str, kind: type[_H], path: Path) -> tuple[_H, wire.Array]:
    header, arrays = sandbox().call(task, {"path": str(path.absolute())}, timeout_s=READ_TIMEOUT_S)
    try:
        return kind.model_validate(header[task]), arrays["values"]
    except (ValidationError, KeyError):
        raise InputError("the header cannot be used: its geometry is not that of a 3D volume", file=path) from None


def _from_nifti(header: _NiftiHeader, values: wire.Array, path: Path) -> StoredVolume:
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
    header: _AxesHeader, values: wire.Array, path: Path, source: Literal["nrrd", "metaimage"]
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
    return Geometry(
        (float(spacing[0]), float(spacing[1]), float(spacing[2])),
        (float(origin[0]), float(origin[1]), float(origin[2])),
        tuple(float(v) + 0.0 for v in direction.reshape(-1)),
    )


def rescaled(values: wire.Array, slope: float | None, intercept: float | None, path: Path) -> wire.Array:
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
    geometry = Geometry(
        (float(sizes[0]), float(sizes[1]), float(sizes[2])),
        (float(origin[0]), float(origin[1]), float(origin[2])),
        tuple(float(v) + 0.0 for v in columns.reshape(-1)),
    )
    return Volume(
        np.ascontiguousarray(hu.transpose(2, 1, 0), dtype=np.int16),
        (float(sizes[2]), float(sizes[1]), float(sizes[0])),
        geometry,
        stored.source,
        stored.warnings,
        stored.study_key,
        stored.patient_key,
    )


def without_shear(stored: StoredVolume) -> wire.Array:
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
