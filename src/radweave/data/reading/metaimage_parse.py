"""Parse a MetaImage volume (.mha, or .mhd with its data beside it). Runs in the reading process.

The header is ``Key = Value`` lines and ends with ElementDataFile. Meanings are those of ITK's reader
(https://docs.itk.org/en/latest/learn/metaio.html): the array runs x first, positions are LPS in mm, and each three
numbers of TransformMatrix are the direction of one axis of the array.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from radweave.base.errors import InputError
from radweave.data.reading import wire
from radweave.data.reading.inflate import MORE, inflate_exactly
from radweave.data.reading.volume_parse import check_size, sendable

MAX_HEADER_BYTES: Final = 64 << 10
_TYPES: Final = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
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


def parse_metaimage(request: dict[str, Any]) -> wire.Message:
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
