"""What the tool reads in a file or folder, as one record each: the same code paths that training and reporting use.

No record holds a patient's name, identifier or date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from radweave.core.errors import InputError
from radweave.core.storage import sha256_bytes
from radweave.core.study import Record
from radweave.io import worker
from radweave.io.dicom import DicomHeader, DicomImage, read_dicom
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
from radweave.io.volumes import StoredVolume, read_stored, to_standard

MAX_PIXEL_BYTES: Final = 4 * MAX_PIXELS


class Inspection(Record):
    """One file, or one series folder.

    ``kind``: radiograph, ct slice, ct localizer, ct volume, volume (its values are no Hounsfield units), image (it
    decodes, but is none of these) or unknown.
    ``shape`` is (rows, columns) of an image, with frames before and samples after, or (z, y, x) of a volume;
    ``spacing_mm`` follows its axes. ``origin`` and ``direction`` are LPS, x, y, z, as ITK states them. The statistics
    and ``pixel_sha256`` (int32, little-endian, C order) are of the stored pixels of an image and of the Hounsfield
    units of a volume; they are given beside a refusal where there is something to decode.
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


@dataclass(frozen=True, slots=True)
class _Values:
    shape: tuple[int, ...]
    dtype: str
    pixel_sha256: str
    min: float
    max: float
    mean: float

    def fields(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}


def inspect(path: Path) -> list[Inspection]:
    """Records for a file, a series folder, or all files below a folder, sorted by name.

    Raises:
        InputError: only if ``path`` is missing or an empty folder; what is refused becomes a record.
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
    """Records for several files and folders; one that is missing or empty is a record too, if it is not the only one.

    Raises:
        InputError: as ``inspect``, if there is one path.
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
    """True for a DICOM file that says it is CT, or says nothing but has a position in the patient."""
    try:
        if sniff(path) != "dicom":
            return False
        header = read_dicom(path, pixels=False).header
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
    """The message without the file name, which the record has already."""
    return str(InputError(error.reason, field=error.field, got=error.got, expected=error.expected))


def _describe(values: worker.Array) -> _Values:
    """Shape and statistics; the hash is of the values as little-endian int32 in C order."""
    exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    limits = np.iinfo(np.int32)
    hashed = np.clip(exact, limits.min, limits.max) if values.dtype.kind == "f" else values
    return _Values(
        tuple(int(n) for n in values.shape),
        values.dtype.name,
        sha256_bytes(np.ascontiguousarray(hashed, dtype="<i4").tobytes()),
        float(exact.min()),
        float(exact.max()),
        float(exact.mean(dtype=np.float64)),
    )


def _raster(path: Path, name: str) -> Inspection:
    raster = read_raster(path)
    base = Inspection.model_validate(
        {"file": name, "kind": "image", "format": raster.source, **_describe(raster.pixels).fields()}
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
            **({} if image.pixels is None else _describe(image.pixels).fields()),
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
    """A single CT image can be read as a part of a series; by itself it is neither a radiograph nor a volume."""
    from radweave.io.volumes import no_slice

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
    origin, direction = _plane(header)
    return base.model_copy(
        update={
            "kind": "ct localizer" if localizer else "ct slice",
            "accepted": True,
            "origin": origin,
            "direction": direction,
            "warnings": tuple(_slice_warnings(header, localizer=localizer)),
        }
    )


def _slice_warnings(header: DicomHeader, *, localizer: bool) -> list[str]:
    what = "a CT localizer (scout view)" if localizer else "a single CT slice"
    warnings = [f"{what}: neither a radiograph nor a volume"]
    if header.modality is None:
        warnings.append("no modality: the header does not say that it is CT")
    warnings += [text for text in header_warnings(header) if "modality" not in text and "lateral" not in text]
    return warnings


def _plane(header: DicomHeader) -> tuple[tuple[float, ...], tuple[float, ...]]:
    from radweave.io.volumes import slice_direction

    assert header.position_lps_mm is not None
    return header.position_lps_mm, slice_direction(header)


def _volume(path: Path, name: str, kind: str) -> Inspection:
    stored: StoredVolume | None = None
    try:
        stored = read_stored(path)
        volume = to_standard(stored, path)
    except InputError as error:
        base = Inspection(file=name, format=kind, reason=_reason(error))
        return base if stored is None else base.model_copy(update=_stored_fields(stored))
    from radweave.io.volumes import chest_warnings, value_warnings

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
        **_describe(stored.values).fields(),
        "spacing_mm": (z, y, x),
        "origin": stored.geometry.origin_lps,
        "direction": stored.geometry.direction,
    }
