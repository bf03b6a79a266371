"""Look at a DICOM file's structure before a library does: is it DICOM, how deep, does it end where it should.

pydicom reads nested sequences by recursion, and a file of some kilobytes can nest thousands. It also accepts files
that end in the middle of an element. This scan is a loop over the elements' headers (PS3.5 Sec. 7), touches no value,
and runs in the reading process.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from radweave.base.errors import InputError

PREAMBLE_BYTES = 128
MAX_SEQUENCE_DEPTH = 64
MAX_ELEMENTS = 1_000_000
MAX_INFLATED_BYTES = 128 << 20
UNDEFINED = 0xFFFFFFFF

IMPLICIT_LITTLE = "1.2.840.10008.1.2"
EXPLICIT_LITTLE = "1.2.840.10008.1.2.1"
DEFLATED = "1.2.840.10008.1.2.1.99"
EXPLICIT_BIG = "1.2.840.10008.1.2.2"

ITEM, ITEM_END, SEQUENCE_END, PIXEL_DATA = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD, 0x7FE00010
LONG_VRS = frozenset({b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"})
_ROOM_AT_EOF = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the data set begins and how it is encoded. ``transfer_syntax`` is None in a file without meta header."""

    start: int
    transfer_syntax: str | None
    implicit: bool
    big_endian: bool


def looks_like_dicom(head: bytes) -> bool:
    """Tell DICOM from its first 132 bytes; a data set without preamble begins with group 2 or 8."""
    if head[PREAMBLE_BYTES : PREAMBLE_BYTES + 4] == b"DICM":
        return True
    if len(head) < 16 or head[:2] not in (b"\x02\x00", b"\x08\x00") or head[3] != 0:
        return False
    return (head[4:6].isalpha() and head[4:6].isupper()) or int.from_bytes(head[4:8], "little") <= 256


def find_layout(data: bytes) -> Layout:
    """Read the file meta information (PS3.10 Sec. 7.1).

    Raises:
        InputError: if the bytes are no DICOM file, or the meta information is cut or names no transfer syntax.
    """
    if not looks_like_dicom(data[: PREAMBLE_BYTES + 4]):
        raise InputError("not a DICOM file")
    has_preamble = data[PREAMBLE_BYTES : PREAMBLE_BYTES + 4] == b"DICM"
    position = PREAMBLE_BYTES + 4 if has_preamble else 0
    if not has_preamble and data[:2] == b"\x08\x00":
        return Layout(0, None, implicit=not data[4:6].isalpha(), big_endian=False)
    syntax: str | None = None
    while data[position : position + 2] == b"\x02\x00":
        tag, vr = data[position : position + 4], data[position + 4 : position + 6]
        if vr in LONG_VRS:
            header, length = 12, int.from_bytes(data[position + 8 : position + 12], "little")
        else:
            header, length = 8, int.from_bytes(data[position + 6 : position + 8], "little")
        end = position + header + length
        if end > len(data):
            raise InputError("truncated: the file ends inside the file meta information")
        if tag == b"\x02\x00\x10\x00":
            syntax = data[position + header : end].rstrip(b"\0 ").decode("ascii", "replace")
        position = end
    if syntax is None:
        raise InputError("the file meta information names no transfer syntax", field="TransferSyntaxUID")
    return Layout(position, syntax, implicit=syntax == IMPLICIT_LITTLE, big_endian=syntax == EXPLICIT_BIG)


def inflate(data: bytes, start: int) -> bytes:
    """Inflate a deflated data set (PS3.5 Annex A.5), up to a cap.

    Raises:
        InputError: if it holds more than ``MAX_INFLATED_BYTES`` or is damaged.
    """
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(data[start:], MAX_INFLATED_BYTES)
    except zlib.error:
        raise InputError("the deflated data set is damaged") from None
    if inflater.unconsumed_tail:
        raise InputError(
            "the deflated data set is too large", got=f"over {MAX_INFLATED_BYTES >> 20} MB", expected="a smaller image"
        )
    if not inflater.eof:
        raise InputError("truncated: the deflated data set has no end")
    return plain


@dataclass(slots=True)
class _Open:
    """A sequence or item whose end is not reached yet; ``end`` is None where a delimiter ends it."""

    end: int | None
    is_sequence: bool
    implicit: bool


class _Scan:
    def __init__(self, data: bytes, layout: Layout) -> None:
        order = ">" if layout.big_endian else "<"
        self._data = data
        self._tag = struct.Struct(order + "HH")
        self._long = struct.Struct(order + "I")
        self._short = struct.Struct(order + "H")
        self._position = layout.start
        self._implicit = layout.implicit
        self._stack: list[_Open] = []

    def run(self) -> None:
        data_end = len(self._data)
        for _ in range(MAX_ELEMENTS):
            while self._stack and self._stack[-1].end is not None and self._position >= self._stack[-1].end:
                self._stack.pop()
            if self._position + _ROOM_AT_EOF > data_end:
                break
            self._step()
            if self._position > data_end:
                raise InputError("truncated: the file ends inside a data element")
        else:
            raise InputError("holds too many data elements", expected=f"at most {MAX_ELEMENTS}")
        if any(part.end is None for part in self._stack):
            raise InputError("truncated: the file ends inside a sequence")

    def _step(self) -> None:
        group, element = self._tag.unpack_from(self._data, self._position)
        tag = group << 16 | element
        if group == 0xFFFE:
            self._delimiter(tag, self._long.unpack_from(self._data, self._position + 4)[0])
            return
        vr, length, header = self._element_header(tag)
        self._position += header
        opens_sequence = vr == b"SQ" or (length == UNDEFINED and tag != PIXEL_DATA)
        if opens_sequence:
            implicit = vr in (b"UN", None) or (bool(self._stack) and self._stack[-1].implicit)
            self._open(None if length == UNDEFINED else self._position + length, True, implicit)
        elif length == UNDEFINED:
            self._skip_fragments()
        else:
            self._position += length

    def _element_header(self, tag: int) -> tuple[bytes | None, int, int]:
        """Value representation (None: not known), length of the value, length of the header."""
        implicit = self._stack[-1].implicit if self._stack else self._implicit
        vr = self._data[self._position + 4 : self._position + 6]
        if implicit or not (vr.isalpha() and vr.isupper()):
            length = self._long.unpack_from(self._data, self._position + 4)[0]
            return (b"SQ" if _is_sequence(tag) else None), length, 8
        if vr in LONG_VRS:
            if self._position + 12 > len(self._data):
                raise InputError("truncated: the file ends inside a data element")
            return vr, self._long.unpack_from(self._data, self._position + 8)[0], 12
        return vr, self._short.unpack_from(self._data, self._position + 6)[0], 8

    def _open(self, end: int | None, is_sequence: bool, implicit: bool) -> None:
        self._stack.append(_Open(end, is_sequence, implicit))
        if len(self._stack) > 2 * MAX_SEQUENCE_DEPTH:
            raise InputError("sequences are nested too deeply", expected=f"at most {MAX_SEQUENCE_DEPTH} levels")

    def _delimiter(self, tag: int, length: int) -> None:
        self._position += 8
        if tag == ITEM:
            implicit = self._stack[-1].implicit if self._stack else self._implicit
            self._open(None if length == UNDEFINED else self._position + length, False, implicit)
        elif tag in (ITEM_END, SEQUENCE_END):
            while self._stack:
                if self._stack.pop().is_sequence == (tag == SEQUENCE_END):
                    break

    def _skip_fragments(self) -> None:
        while self._position + 8 <= len(self._data):
            group, element = self._tag.unpack_from(self._data, self._position)
            length = self._long.unpack_from(self._data, self._position + 4)[0]
            self._position += 8
            if (group << 16 | element) == SEQUENCE_END:
                return
            if (group << 16 | element) != ITEM or self._position + length > len(self._data):
                break
            self._position += length
        raise InputError("truncated or damaged: the compressed image does not end", field="PixelData")


def _is_sequence(tag: int) -> bool:
    from pydicom._dicom_dict import DicomDictionary

    entry = DicomDictionary.get(tag)
    return entry is not None and entry[0] == "SQ"


def check_structure(data: bytes, layout: Layout) -> None:
    """Walk over all elements.

    Raises:
        InputError: if sequences nest too deeply, there are too many elements, or the file ends too early.
    """
    _Scan(data, layout).run()
