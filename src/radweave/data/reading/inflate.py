"""Compressed voxels to plain bytes, read to the end so that the checksum behind them is compared. Reading process only.

A library that stops at the last voxel never sees that checksum, and a changed bit becomes a changed picture.
"""

from __future__ import annotations

import bz2
import io
import zlib
from typing import Any, BinaryIO, Final

from radweave.base.errors import InputError

# Bytes behind the voxels that are read over to reach the checksum: a writer's padding. More is made to fill memory.
MAX_PADDING_BYTES: Final = 1 << 20
# Parts of a gzip file that hold nothing. Some writers end with one; millions are made to fill time.
MAX_EMPTY_MEMBERS: Final = 64
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
_GZIP: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 1 << 17
MORE: Final = "holds more data than its header declares voxels"
CUT: Final = "truncated: the compressed data ends too early"
DAMAGED: Final = "the compressed data is damaged"


class GzipStream(io.RawIOBase):
    """What a zlib stream or a gzip file, of one member or several, unpacks to. Give it to ``io.BufferedReader``.

    Checksums are compared at the end of each member. ``rest`` is what follows the last one but for zeros, once all was
    read; the library's own reader neither counts members nor reads zlib streams.

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
