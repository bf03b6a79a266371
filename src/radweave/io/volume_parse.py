"""Parse a NIfTI or NRRD volume into values and the numbers of its geometry. Runs in the reading process.

Sizes come from the header and are checked before anything is inflated or allocated.
"""

from __future__ import annotations

import bz2
import io
import math
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import nibabel as nib
import nrrd
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from radweave.core.errors import InputError
from radweave.io import worker

# Decompression to the end of the data, so that the checksum is compared: a library that stops at the last voxel never
# reads it, and a changed bit becomes a changed picture.

# Padding behind the voxels that is read to reach the checksum; more is an attempt to fill memory.
MAX_PADDING_BYTES: Final = 1 << 20
# Empty members of a gzip file. Some writers end with one; millions are an attempt to take time.
MAX_EMPTY_MEMBERS: Final = 64
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
_GZIP: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 1 << 17
MORE: Final = "holds more data than its header declares voxels"
CUT: Final = "truncated: the compressed data ends too early"
DAMAGED: Final = "the compressed data is damaged"


class GzipStream(io.RawIOBase):
    """The content of a zlib stream or of a gzip file with any number of members, for ``io.BufferedReader``.

    Checksums are compared at the end of each member. ``rest`` holds the data behind the last one except zeros, after
    reading all; the standard library's reader neither counts members nor reads zlib streams.

    Raises:
        InputError: by any read, if the data is cut, damaged, or holds too many empty members.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rewind()

    def _rewind(self) -> None:
        self._file.seek(0)
        self._inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._waiting = b""
        self._place = self._empty = self._in_member = 0
        self._ended = False
        self.rest = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, from the start or from here; back means from the start again."""
        if whence == io.SEEK_END:  # numpy asks, before it maps a file into memory
            raise io.UnsupportedOperation("the end is not known")
        wanted = offset + (self._place if whence == io.SEEK_CUR else 0)
        if wanted < self._place:
            self._rewind()
        while self._place < wanted and self._next(min(_CHUNK_BYTES, wanted - self._place)):
            pass
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        part = self._next(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _next(self, most: int) -> bytes:
        """Some plain bytes, at most so many; none at the end."""
        while not self._ended and most:
            data = self._waiting or self._file.read(_CHUNK_BYTES)
            try:
                part = self._inflater.decompress(data, most)
            except zlib.error:
                raise InputError(DAMAGED) from None
            self._waiting = self._inflater.unconsumed_tail
            self._in_member += len(part)
            self._place += len(part)
            if self._inflater.eof:
                self._end_member()
            elif not data and not part:
                raise InputError(CUT)
            if part:
                return part
        return b""

    def _end_member(self) -> None:
        self._empty += self._in_member == 0
        if self._empty > MAX_EMPTY_MEMBERS:
            raise InputError("the compressed data has too many empty parts", expected=f"at most {MAX_EMPTY_MEMBERS}")
        data = self._inflater.unused_data
        data += self._file.read(len(_GZIP)) if len(data) < len(_GZIP) else b""
        if data.startswith(_GZIP):
            self._inflater, self._waiting, self._in_member = zlib.decompressobj(_ZLIB_OR_GZIP), data, 0
            return
        self._ended = True
        while data:
            self.rest += len(data.rstrip(b"\0")) if not self.rest else len(data)
            data = self._file.read(_CHUNK_BYTES)


def inflate_exactly(data: bytes, need: int) -> tuple[bytes, int]:
    """``need`` bytes out of a zlib stream or a gzip file, and how many bytes lie behind its end.

    Raises:
        InputError: if they are cut, damaged, or more.
    """
    stream = GzipStream(io.BytesIO(data))
    plain = io.BufferedReader(stream).read(need + 1)
    return _whole(plain, need), stream.rest


def bunzip_exactly(data: bytes, need: int) -> tuple[bytes, int]:
    """As ``inflate_exactly``, out of bzip2 data."""
    inflater = bz2.BZ2Decompressor()
    try:
        plain = inflater.decompress(data, need + 1)
        while not inflater.eof and not inflater.needs_input and len(plain) <= need:
            plain += inflater.decompress(b"", need + 1 - len(plain))
    except (OSError, ValueError):
        raise InputError(DAMAGED) from None
    if len(plain) <= need and not inflater.eof:
        raise InputError(CUT)
    return _whole(plain, need), len(inflater.unused_data.rstrip(b"\0"))


def _whole(plain: bytes, need: int) -> bytes:
    if len(plain) > need:
        raise InputError(MORE)
    if len(plain) < need:
        raise InputError("truncated: fewer voxels than the header declares")
    return plain


def read_to_end(stream: Any) -> int:
    """Read what is left of an opened gzip file, so that its checksum and length are compared; give the bytes read.

    Raises:
        InputError: if more than ``MAX_PADDING_BYTES`` come, or as the stream does.
    """
    rest = 0
    while chunk := stream.read(1 << 16):
        rest += len(chunk)
        if rest > MAX_PADDING_BYTES:
            raise InputError(MORE)
    return rest


MAX_VALUE_BYTES: Final = 2 << 30
# Real scans deflate two- to fivefold; the format's limit is 1032. A large volume far beyond is made to fill memory.
SUSPECT_RATIO: Final = 250
SUSPECT_FROM_BYTES: Final = 64 << 20
NIFTI1_HEADER, NIFTI2_HEADER = 348, 540
# Extensions of programs between the header and the voxels.
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


def parse_nifti(request: dict[str, Any]) -> worker.Message:
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


def parse_nrrd(request: dict[str, Any]) -> worker.Message:
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


def _nrrd_values(data: bytes, header: Any, file_bytes: int) -> tuple[worker.Array, int]:
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


def sendable(values: worker.Array) -> worker.Array:
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


# Parse a MetaImage volume (.mha, or .mhd with its data beside it). Runs in the reading process.
#
# The header is ``Key = Value`` lines and ends with ElementDataFile. Meanings are those of ITK's reader
# (https://docs.itk.org/en/latest/learn/metaio.html): the array runs x first, positions are LPS in mm, and each three
# numbers of TransformMatrix are the direction of one axis of the array.


MAX_HEADER_BYTES: Final = 64 << 10
_TYPES: Final = {
    "MET_CHAR": "i1", "MET_UCHAR": "u1", "MET_SHORT": "i2", "MET_USHORT": "u2", "MET_INT": "i4", "MET_UINT": "u4",
    "MET_LONG": "i4", "MET_ULONG": "u4", "MET_LONG_LONG": "i8", "MET_ULONG_LONG": "u8", "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}  # fmt: skip
_CT: Final = frozenset({"MET_MOD_CT", "MET_MOD_OTHER", "MET_MOD_UNKNOWN"})
# Other names of one field, from older writers.
_MATRIX: Final = ("TransformMatrix", "Rotation", "Orientation")
_ORIGIN: Final = ("Offset", "Position", "Origin")
_UNITS: Final = ("mm", "?")
"""``?`` is what the format's own writer says of its default, mm."""
_BIG_ENDIAN: Final = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")


class _Header:
    """The fields of a header by name."""

    def __init__(self, fields: dict[str, str]) -> None:
        self._fields = fields

    def text(self, *names: str) -> str | None:
        return next((self._fields[name] for name in names if name in self._fields), None)

    def flag(self, *names: str, default: bool = False) -> bool:
        text = self.text(*names)
        return default if text is None else text.lower() in ("true", "1", "t")

    def numbers(self, count: int, *names: str) -> list[float] | None:
        """``count`` finite numbers, or None where there is no such field."""
        text = self.text(*names)
        if text is None:
            return None
        try:
            values = [float(word) for word in text.split()]
        except ValueError:
            values = []
        if len(values) != count or not all(math.isfinite(value) for value in values):
            raise InputError("is not what it should be", field=names[0], expected=f"{count} finite numbers")
        return values


def parse_metaimage(request: dict[str, Any]) -> worker.Message:
    """Values as (z, y, x), space directions and origin in LPS, mm, as ``parse_nrrd`` gives them.

    Raises:
        InputError: if it is no MetaImage, not 3D, not numeric, cut, damaged or too large, or leads to another place.
    """
    path = Path(request["path"])
    with path.open("rb") as file:
        header = _read_header(file)
        kind, shape = _layout(header)
        need = math.prod(shape) * kind.itemsize
        compressed = header.flag("CompressedData")
        name = header.text("ElementDataFile") or ""
        if name.upper() == "LOCAL":
            left = path.stat().st_size - file.tell()
            check_size(shape, kind.itemsize, left if compressed else None)
            plain, rest = _bytes(file, need, left, compressed=compressed)
        else:
            with _open_beside(path, name) as other:
                left = _skip(other, header, need)
                check_size(shape, kind.itemsize, left if compressed else None)
                plain, rest = _bytes(other, need, left, compressed=compressed)
    values = np.frombuffer(plain, dtype=kind, count=math.prod(shape)).reshape(shape[::-1])
    return {"metaimage": {**_geometry(header), "doubts": [MORE] if rest else []}}, {"values": sendable(values)}


def _read_header(file: BinaryIO) -> _Header:
    """Fields up to and with ElementDataFile; the file is left at the byte behind it."""
    fields: dict[str, str] = {}
    while file.tell() <= MAX_HEADER_BYTES:
        line = file.readline(MAX_HEADER_BYTES)
        key, equals, value = line.decode("ascii", "replace").partition("=")
        key, value = key.strip(), value.strip()
        if not equals and line.strip():
            break
        if not line:
            break
        if not equals:
            continue
        if key in fields:
            raise InputError("stands twice in the header", field=key if key.isalpha() else None)
        fields[key] = value
        if key == "ElementDataFile":
            return _Header(fields)
    raise InputError("the MetaImage header is damaged: ElementDataFile is missing")


def _layout(header: _Header) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type of a voxel, and the sizes x, y, z."""
    if not header.flag("BinaryData", default=True):
        raise InputError("holds its voxels as text, which is not read", field="BinaryData")
    if (header.numbers(1, "ElementNumberOfChannels") or [1])[0] != 1:
        raise InputError("holds several values a voxel", field="ElementNumberOfChannels", expected=1)
    modality = header.text("Modality")
    if modality is not None and modality not in _CT:
        raise InputError("is not CT", field="Modality", expected="MET_MOD_CT")
    for name, neutral in (("ElementToIntensityFunctionSlope", 1), ("ElementToIntensityFunctionOffset", 0)):
        if (header.numbers(1, name) or [neutral])[0] != neutral:
            raise InputError("is not supported", field=name, expected=neutral)
    kind = _TYPES.get(header.text("ElementType") or "")
    if kind is None:
        raise InputError("has values of a type that cannot be used", field="ElementType")
    dimensions = (header.numbers(1, "NDims") or [0])[0]
    if dimensions != 3:
        raise InputError("is not one 3D volume", field="NDims", got=f"{dimensions:g}", expected=3)
    sizes = header.numbers(3, "DimSize")
    if sizes is None or any(size != int(size) or size < 1 for size in sizes):
        raise InputError("is missing or cannot be used", field="DimSize", expected="3 whole numbers above 0")
    order = ">" if header.flag(*_BIG_ENDIAN) else "<"
    return np.dtype(order + kind), (int(sizes[0]), int(sizes[1]), int(sizes[2]))


def _open_beside(path: Path, name: str) -> BinaryIO:
    """The data file that a .mhd header names: a plain file of the same folder, never a link."""
    plain = name == Path(name).name and name not in ("", ".", "..", "LIST") and "\\" not in name and "%" not in name
    if not plain or path.suffix.lower() != ".mhd":
        raise InputError(
            "has its data in another place, which is not followed", field="ElementDataFile",
            expected="LOCAL, or for a .mhd header one file beside it",
        )  # fmt: skip
    try:
        descriptor = os.open(path.parent / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise InputError("names a data file that is missing or a link", field="ElementDataFile") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("names a data file that is no plain file", field="ElementDataFile")
    return os.fdopen(descriptor, "rb")


def _skip(file: BinaryIO, header: _Header, need: int) -> int:
    """Step over HeaderSize bytes of a separate data file (-1: the voxels are its end); give the bytes left."""
    size = os.fstat(file.fileno()).st_size
    skip = int((header.numbers(1, "HeaderSize") or [0])[0])
    skip = size - need if skip == -1 else skip
    if not 0 <= skip <= size:
        raise InputError("does not fit the data file", field="HeaderSize")
    file.seek(skip)
    return size - skip


def _bytes(file: BinaryIO, need: int, left: int, *, compressed: bool) -> tuple[bytes, int]:
    """``need`` bytes of voxels, and how many bytes are left over behind them."""
    if compressed:
        return inflate_exactly(file.read(), need)
    if left < need:
        raise InputError("truncated: fewer voxels than the header declares")
    return file.read(need), left - need


def _geometry(header: _Header) -> dict[str, Any]:
    unit = header.text("DistanceUnits")
    if unit is not None and unit.lower() not in _UNITS:
        raise InputError("measures in another unit, which is not read", field="DistanceUnits", expected="mm")
    spacing = header.numbers(3, "ElementSpacing") or header.numbers(3, "ElementSize")
    if spacing is None or min(spacing) <= 0:
        raise InputError("is missing or not positive", field="ElementSpacing")
    matrix = header.numbers(9, *_MATRIX)
    axes = None if matrix is None else [[step * v for v in matrix[3 * i : 3 * i + 3]] for i, step in enumerate(spacing)]
    return {
        "space_known": True,
        "directions_lps": axes,
        "origin_lps": header.numbers(3, *_ORIGIN),
        "spacings_mm": spacing,
    }
