"""Records of the content of files and folders, by the same readers as training and reporting.

No record holds a patient's name, identifier or date.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import Record
from radweave.io import worker
from radweave.io.dicom import DicomHeader, DicomImage, read_dicom, read_header
from radweave.io.images import (
    MAX_PIXELS,
    header_warnings,
    no_radiograph,
    one_file,
    radiograph_from_dicom,
    radiograph_from_raster,
    radiograph_spacing,
    read_raster,
    sniff,
)
from radweave.io.volumes import (
    StoredVolume,
    chest_warnings,
    no_slice,
    read_stored,
    slice_direction,
    to_standard,
    value_warnings,
)

MAX_PIXEL_BYTES: Final = 4 * MAX_PIXELS


class Inspection(Record):
    """One file, or one series folder.

    ``kind``: radiograph, ct slice, ct localizer, ct volume, volume (its values are no Hounsfield units), image (it
    decodes, but is none of these) or unknown.
    ``shape`` is (rows, columns) of an image, with frames before and samples after, or (z, y, x) of a volume;
    ``spacing_mm`` follows its axes. ``origin`` and ``direction`` are LPS, x, y, z, as ITK states them. The statistics
    and ``pixel_sha256`` (int32, little-endian, C order) are of the stored pixels of an image and of the Hounsfield
    units of a volume; refused files have them too if they can be decoded.
    """

    file: str
    kind: str = "unknown"
    accepted: bool = False
    reason: str | None = None
    format: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    photometric: str | None = None
    modality: str | None = None
    view: str | None = None
    transfer_syntax: str | None = None
    bits_stored: int | None = None
    spacing_mm: tuple[float, ...] | None = None
    origin: tuple[float, ...] | None = None
    direction: tuple[float, ...] | None = None
    pixel_sha256: str | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    warnings: tuple[str, ...] = ()


def inspect(path: Path) -> list[Inspection]:
    """Records for a file, a series folder, or all files below a folder, sorted by name.

    Raises:
        InputError: only if ``path`` is missing or an empty folder; refused files are records.
    """
    if not path.exists():
        raise InputError("no such file or folder", file=path)
    if not path.is_dir():
        return [_file(path, str(path))]
    records = _folder(path)
    if not records:
        raise InputError("the folder holds no files", file=path)
    return records


def inspect_all(paths: Sequence[Path]) -> list[Inspection]:
    """Records for several files and folders, with missing and empty ones.

    Raises:
        InputError: as ``inspect``, for a single path.
    """
    if len(paths) == 1:
        return inspect(paths[0])
    records: list[Inspection] = []
    for path in paths:
        try:
            records += inspect(path)
        except InputError as error:
            records.append(Inspection(file=str(path), reason=_reason(error)))
    return records


def _folder(folder: Path) -> list[Inspection]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if not entry.is_dir()]
    if len(files) > 1 and all(_is_ct_slice(file) for file in files):
        records = [_volume(folder, str(folder), "dicom series")]
    else:
        records = [_file(file, str(file)) for file in files]
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            records += _folder(entry)
    return records


def _is_ct_slice(path: Path) -> bool:
    """True for a DICOM file of CT, or without a modality but with a position in the patient."""
    try:
        if sniff(path) != "dicom":
            return False
        header = read_header(path)
    except InputError:
        return False
    return header.modality == "CT" or (header.modality is None and header.position_lps_mm is not None)


def _file(path: Path, name: str) -> Inspection:
    kind = None
    try:
        with one_file(path):
            kind = sniff(path)
            if kind == "dicom":
                return _dicom(path, name)
            if kind in ("png", "jpeg"):
                return _raster(path, name)
            return _volume(path, name, "nifti" if kind == "gzip" else kind)
    except InputError as error:
        return Inspection(file=name, format=kind, reason=_reason(error))


def _reason(error: InputError) -> str:
    """The message without the file name."""
    return str(InputError(error.reason, field=error.field, got=error.got, expected=error.expected))


def _describe(values: worker.Array) -> dict[str, object]:
    """Shape, statistics and hash, as fields of a record."""
    exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    limits = np.iinfo(np.int32)
    hashed = np.clip(exact, limits.min, limits.max) if values.dtype.kind == "f" else values
    return {
        "shape": values.shape,
        "dtype": values.dtype.name,
        "pixel_sha256": sha256_bytes(np.ascontiguousarray(hashed, dtype="<i4").tobytes()),
        "min": float(exact.min()),
        "max": float(exact.max()),
        "mean": float(exact.mean(dtype=np.float64)),
    }


def _raster(path: Path, name: str) -> Inspection:
    raster = read_raster(path)
    base = Inspection.model_validate(
        {"file": name, "kind": "image", "format": raster.source, **_describe(raster.pixels)}
    )
    try:
        radiograph = radiograph_from_raster(path, raster)
    except InputError as error:
        return base.model_copy(update={"reason": _reason(error)})
    return base.model_copy(update={"kind": "radiograph", "accepted": True, "warnings": radiograph.warnings})


def _dicom(path: Path, name: str) -> Inspection:
    image = read_dicom(path, max_pixel_bytes=MAX_PIXEL_BYTES)
    header = image.header
    base = Inspection.model_validate(
        {
            "file": name,
            "kind": "image",
            "format": "dicom",
            "modality": header.modality,
            "photometric": header.photometric,
            "view": header.view,
            "transfer_syntax": header.transfer_syntax,
            "bits_stored": header.bits_stored,
            "spacing_mm": radiograph_spacing(header)[0],
            **({} if image.pixels is None else _describe(image.pixels)),
        }
    )
    if header.modality == "CT" or (header.modality is None and header.position_lps_mm is not None):
        return _ct_slice(image, base)
    refusal = no_radiograph(header)
    try:
        if refusal is not None:
            raise refusal
        radiograph = radiograph_from_dicom(image)
    except InputError as error:
        kind = "image" if image.pixels is not None else "unknown"
        return base.model_copy(update={"kind": kind, "reason": _reason(error)})
    return base.model_copy(
        update={
            "kind": "radiograph",
            "accepted": True,
            "view": radiograph.view.value,
            "spacing_mm": radiograph.spacing_mm,
            "warnings": radiograph.warnings,
        }
    )


def _ct_slice(image: DicomImage, base: Inspection) -> Inspection:
    """The record of a single CT image, which is neither a radiograph nor a volume."""
    header = image.header
    if image.pixels is None:
        try:
            image.stored_pixels()
        except InputError as error:
            return base.model_copy(update={"kind": "unknown", "reason": _reason(error)})
    localizer = "LOCALIZER" in header.image_types
    refusal = no_slice(header)
    if refusal is not None:
        return base.model_copy(update={"reason": _reason(refusal)})
    assert header.position_lps_mm is not None
    return base.model_copy(
        update={
            "kind": "ct localizer" if localizer else "ct slice",
            "accepted": True,
            "origin": header.position_lps_mm,
            "direction": slice_direction(header),
            "warnings": tuple(_slice_warnings(header, localizer=localizer)),
        }
    )


def _slice_warnings(header: DicomHeader, *, localizer: bool) -> list[str]:
    kind = "a CT localizer (scout view)" if localizer else "a single CT slice"
    warnings = [f"{kind}: neither a radiograph nor a volume"]
    if header.modality is None:
        warnings.append("no modality: the header does not say that it is CT")
    warnings += [text for text in header_warnings(header) if "modality" not in text and "lateral" not in text]
    return warnings


def _volume(path: Path, name: str, kind: str) -> Inspection:
    stored: StoredVolume | None = None
    try:
        stored = read_stored(path)
        volume = to_standard(stored, path)
    except InputError as error:
        base = Inspection(file=name, format=kind, reason=_reason(error))
        return base if stored is None else base.model_copy(update=_stored_fields(stored))
    doubts = value_warnings(stored.values)
    return Inspection.model_validate(
        {
            "file": name,
            "kind": "volume" if doubts else "ct volume",
            "format": kind,
            "accepted": True,
            "modality": stored.modality,
            **_stored_fields(stored),
            "warnings": (*stored.warnings, *doubts, *chest_warnings(volume)),
        }
    )


def _stored_fields(stored: StoredVolume) -> dict[str, object]:
    x, y, z = stored.geometry.spacing_xyz_mm
    return {
        **_describe(stored.values),
        "spacing_mm": (z, y, x),
        "origin": stored.geometry.origin_lps,
        "direction": stored.geometry.direction,
    }
