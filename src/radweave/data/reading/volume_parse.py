"""Parse a NIfTI or NRRD volume into values and the numbers of its geometry. Runs in the reading process.

Sizes come from the header and are checked before anything is inflated or allocated.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, Final

import nibabel as nib
import nrrd
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from radweave.base.errors import InputError
from radweave.data.reading import wire
from radweave.data.reading.inflate import MORE, GzipStream, bunzip_exactly, inflate_exactly, read_to_end

MAX_VALUE_BYTES: Final = 2 << 30
# Real scans deflate two- to fivefold; the format's limit is 1032. A large volume far beyond is made to fill memory.
SUSPECT_RATIO: Final = 250
SUSPECT_FROM_BYTES: Final = 64 << 20
NIFTI1_HEADER, NIFTI2_HEADER = 348, 540
# What may lie between the header and the voxels: a program's notes.
MAX_EXTENSION_BYTES: Final = 1 << 20
_NUMERIC: Final = frozenset({"|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<f8"})

_NRRD_SPACES: Final = {  # factors that turn a space's axes into left, posterior, superior
    **dict.fromkeys(("left-posterior-superior", "lps"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("right-anterior-superior", "ras"), (-1.0, -1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las"), (1.0, -1.0, 1.0)),
}
_NRRD_MM: Final = frozenset({"", "mm", "millimeter", "millimeters", "millimetre", "none", "nan"})
_NRRD_RAW: Final = frozenset({"raw"})
_NRRD_GZIP: Final = frozenset({"gzip", "gz"})
_NRRD_BZIP: Final = frozenset({"bzip2", "bz2"})


def parse_nifti(request: dict[str, Any]) -> wire.Message:
    """A NIfTI-1 or NIfTI-2 file, gzipped or not: values (x, y, z) as (z, y, x), and the affine in RAS, mm.

    ``slope`` and ``intercept`` are None where the file has none; they are not applied here. A gzip file is read to its
    end, where its checksum is.

    Raises:
        InputError: if it is no NIfTI, not 3D, of a type that is no number, cut, or too large.
    """
    path = Path(request["path"])
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        zipped_stream = GzipStream(raw)
        stream: Any = io.BufferedReader(zipped_stream) if zipped else raw
        try:
            image, start = _nifti_image(stream, zipped=zipped)
            check_size(image.shape, image.get_data_dtype().itemsize, path.stat().st_size if zipped else None)
            values = np.asanyarray(image.dataobj.get_unscaled())
            rest = (
                read_to_end(stream) + zipped_stream.rest
                if zipped
                else path.stat().st_size - image.dataobj.offset - values.nbytes
            )
        except InputError:
            raise
        except (OSError, ValueError, ImageFileError):
            raise InputError("truncated or damaged: fewer voxels than the header declares") from None
    header = image.header
    slope, intercept = image.dataobj.slope, image.dataobj.inter  # nibabel clears them in the header it loads
    sform, qform = int(header["sform_code"]), int(header["qform_code"])
    result = {
        "affine_ras": _floats(image.affine) if sform > 0 or qform > 0 else None,
        "qform_ras": _floats(header.get_qform()) if sform > 0 and qform > 0 else None,
        "pixdim_mm": [_finite(float(v)) for v in start["pixdim"][1:4]],
        "units": header.get_xyzt_units()[0],
        "slope": _finite(slope),
        "intercept": _finite(intercept),
        "doubts": [*_scale_doubts(start), *([MORE] if rest else [])],
    }
    return {"nifti": result}, {"values": sendable(values.reshape(values.shape[:3]).T)}


def _scale_doubts(start: Any) -> list[str]:
    """NIfTI-1 applies no scale where the slope is 0; who wrote an intercept beside it meant something else."""
    slope, intercept = float(start["scl_slope"]), float(start["scl_inter"])
    is_none = (slope == 0 and intercept == 0) or (math.isnan(slope) and math.isnan(intercept))
    if is_none or (slope != 0 and math.isfinite(slope)):
        return []
    return [f"scl_slope {slope:g} and scl_inter {intercept:g} cannot be applied; the stored values are taken as HU"]


def _nifti_image(stream: Any, *, zipped: bool) -> tuple[Any, Any]:
    """The image, its data still unread, and the header as the file has it; nibabel changes voxel sizes and scale."""
    start = stream.read(NIFTI2_HEADER)
    stream.seek(0)
    if start[344:347] == b"ni1" or start[4:7] == b"ni2":
        raise InputError("is half of a .hdr/.img pair; convert it to one .nii file")
    if start[344:347] != b"n+1" and start[4:7] != b"n+2":
        kind = "a gzip file without a NIfTI volume in it" if zipped else "no NIfTI volume"
        raise InputError(f"is {kind}, or its header is damaged")
    kind = nib.Nifti2Image if start[4:7] == b"n+2" else nib.Nifti1Image
    try:
        size = NIFTI2_HEADER if kind is nib.Nifti2Image else NIFTI1_HEADER
        header = kind.header_class(start[:size], check=False)
        offset = float(header["vox_offset"])
        if not offset <= size + MAX_EXTENSION_BYTES:  # nibabel reads all of it
            raise InputError("too much lies before the voxels", field="vox_offset", expected="at most 1 MB")
        return kind.from_stream(stream), header
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError, ImageFileError, HeaderDataError):
        raise InputError("the NIfTI header is damaged") from None


def check_size(shape: tuple[int, ...], item_bytes: int, zipped_bytes: int | None) -> None:
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        raise InputError("is not one 3D volume", field="dim", got=f"{len(shape)}D {shape}", expected="3 dimensions")
    if any(n < 1 for n in shape):
        raise InputError("has an empty dimension", field="dim", got=shape)
    need = math.prod(shape) * item_bytes
    if need > MAX_VALUE_BYTES:
        raise InputError(
            "the header declares too large a volume",
            got=f"{shape}, {need >> 20} MB",
            expected=f"at most {MAX_VALUE_BYTES >> 20} MB",
        )
    if zipped_bytes is not None and need > max(SUSPECT_FROM_BYTES, SUSPECT_RATIO * zipped_bytes):
        raise InputError(
            "the header declares far more than the compressed file can hold of a scan",
            got=f"{need >> 20} MB in a file of {zipped_bytes >> 10} kB",
        )


def parse_nrrd(request: dict[str, Any]) -> wire.Message:
    """An NRRD file with its data attached: values as (z, y, x), and space directions and origin in LPS, mm.

    Raises:
        InputError: if it is no NRRD, detached, not 3D, not numeric, cut, or too large.
    """
    path = Path(request["path"])
    with path.open("rb") as file:
        try:
            header = nrrd.read_header(file)
        except (nrrd.NRRDError, ValueError, KeyError, IndexError, UnicodeDecodeError, AssertionError):
            raise InputError("the NRRD header is damaged") from None
        if "data file" in header or "datafile" in header:
            raise InputError("has its data in another file, which is not followed", field="data file")
        _check_units(header)
        values, rest = _nrrd_values(file.read(), header, path.stat().st_size)
    space = str(header.get("space", "")).lower()
    directions = header.get("space directions")
    spacings = header.get("spacings")
    result = {
        "space_known": space in _NRRD_SPACES,
        "directions_lps": None if directions is None else _to_lps(directions, space),
        "origin_lps": None if header.get("space origin") is None else _to_lps([header["space origin"]], space)[0],
        "spacings_mm": None if spacings is None else [_finite(v) for v in spacings],
        "doubts": [MORE] if rest else [],
    }
    return {"nrrd": result}, {"values": sendable(values)}


def _check_units(header: Any) -> None:
    """Lengths are in mm where nothing else is said."""
    for field in ("space units", "units"):
        units = header.get(field)
        words = [units] if isinstance(units, str) else list(units or [])
        if any(str(word or "").strip().strip('"').lower() not in _NRRD_MM for word in words):
            raise InputError("is not in mm", field=field, expected="mm")


def _nrrd_values(data: bytes, header: Any, file_bytes: int) -> tuple[wire.Array, int]:
    """The voxels, and how many bytes are left over behind them."""
    sizes = tuple(int(n) for n in header.get("sizes", ()))
    try:
        kind = np.dtype(nrrd.reader._determine_datatype(header))
    except (nrrd.NRRDError, KeyError, TypeError, ValueError):
        raise InputError("has values of a type that cannot be used", field="type") from None
    encoding = str(header.get("encoding", "")).lower()
    check_size(sizes, kind.itemsize, file_bytes if encoding in _NRRD_GZIP | _NRRD_BZIP else None)
    if int(header.get("byte skip", header.get("byteskip", 0))) or int(
        header.get("line skip", header.get("lineskip", 0))
    ):
        raise InputError("skips bytes before its data, which is not supported", field="byte skip")
    need = math.prod(sizes) * kind.itemsize
    if encoding in _NRRD_RAW:
        plain, behind = data, 0
    elif encoding in _NRRD_GZIP:
        plain, behind = inflate_exactly(data, need)
    elif encoding in _NRRD_BZIP:
        plain, behind = bunzip_exactly(data, need)
    else:
        raise InputError("has an encoding that is not read", field="encoding", expected="raw, gzip or bzip2")
    if len(plain) < need:
        raise InputError("truncated: fewer voxels than the header declares")
    return np.frombuffer(plain, dtype=kind, count=math.prod(sizes)).reshape(sizes[2::-1]), len(plain) - need + behind


def _to_lps(vectors: Any, space: str) -> list[list[float | None]]:
    factors = _NRRD_SPACES.get(space, (1.0, 1.0, 1.0))
    rows = []
    for vector in list(vectors)[:3]:
        numbers = [math.nan] * 3 if vector is None else [float(v) for v in vector][:3]
        rows.append([_finite(v * f) for v, f in zip(numbers, factors, strict=False)])
    return rows


def sendable(values: wire.Array) -> wire.Array:
    plain = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if plain.dtype.kind in "iu" and plain.dtype.itemsize == 8:
        plain = plain.astype(np.float64)
    if plain.dtype.str not in _NUMERIC:
        raise InputError("has voxels that are no plain numbers", field="datatype")
    return plain


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None


def _floats(matrix: Any) -> list[list[float | None]]:
    return [[_finite(v) for v in row] for row in np.asarray(matrix, dtype=float)]
